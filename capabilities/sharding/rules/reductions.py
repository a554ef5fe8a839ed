"""Operators along axes: sums are summed over cuts, and what needs a row whole says so."""

from collections.abc import Sequence

import numpy as np

from tilesmith.capabilities.sharding.layouts.dimension_maps import (
    DimensionMap,
    FactorKind,
    Local,
    Maker,
    rules,
)
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.expressions.dtypes import to_numpy


def _axes(maker: Maker, rank: int) -> tuple[int, ...] | None:
    """The axes a reduction is over; None if only running the model tells."""
    node = maker.node
    stated = node.attribute("axes")
    if node.input(1):
        value = maker.constant(1)
        if value is None:
            return None
        stated = tuple(int(axis) for axis in value.reshape(-1))
    if not stated:
        return () if node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in stated))


def _reduction(maker: Maker, kind: FactorKind) -> DimensionMap | None:
    shape = maker.dims(0)
    axes = _axes(maker, len(shape))
    if axes is None:
        return None
    given = tuple(
        maker.dimension(size, kind if axis in axes else "kept") for axis, size in enumerate(shape)
    )
    kept = bool(maker.node.attribute("keepdims", 1))
    results = tuple(
        () if axis in axes else factors
        for axis, factors in enumerate(given)
        if kept or axis not in axes
    )
    linear = ((0,),) if kind != "whole" else ()
    localise = _averaged(axes, given) if kind == "averaged" else None
    return maker.map((given,), (results,), linear=linear, localise=localise)


def _averaged(axes: Sequence[int], given: Sequence[tuple[int, ...]]):  # type: ignore[no-untyped-def]
    """Means of parts, each divided by how many parts there are."""

    def localised(node: Node, local: Local) -> Sequence[Node]:
        pieces = 1
        for axis in axes:
            for factor in given[axis]:
                pieces *= local.pieces(factor)
        if pieces == 1:
            return (node,)
        (result,) = node.outputs
        info = local.info(result)
        mean = local.tensor(result, info.dtype, local.shape(result))
        share = local.constant(f"{result}.share", np.array(1 / pieces, to_numpy(info.dtype)))
        return (
            Node(node.operator, node.inputs, (mean,), node.name, node.domain, node.attributes),
            Node("Mul", (mean, share), (result,), f"{node.name}.share"),
        )

    return localised


@rules.register("ReduceSum")
def reduce_sum(maker: Maker) -> DimensionMap | None:
    """Sums of parts are added."""
    return _reduction(maker, "summed")


@rules.register("ReduceMean")
def reduce_mean(maker: Maker) -> DimensionMap | None:
    """Means of equal parts are averaged."""
    return _reduction(maker, "averaged")


def _other(maker: Maker) -> DimensionMap | None:
    return _reduction(maker, "whole")


for _name in having("reduces"):
    if _name not in rules:
        rules.register(_name)(_other)


def _along_axis(maker: Maker) -> DimensionMap | None:
    """The axis is needed whole, the others are kept."""
    node, shape = maker.node, maker.dims(0)
    old = maker.graph.opset < 13 and node.operator != "CumSum"
    axis = node.attribute("axis", 1 if old else -1)
    if node.operator == "CumSum":
        value = maker.constant(1)
        if value is None:
            return None
        axis = int(value.reshape(-1)[0])
    first = int(axis) % max(1, len(shape))
    whole = range(first, len(shape)) if old else (first,)
    dims = tuple(maker.dimension(n, "whole" if a in whole else "kept") for a, n in enumerate(shape))
    return maker.map((dims,), (dims,))


for _name in ("Softmax", "LogSoftmax", "Hardmax", "CumSum"):
    rules.register(_name)(_along_axis)


@rules.register("Trilu")
def trilu(maker: Maker) -> DimensionMap | None:
    """Matrices are needed whole."""
    dims = (*maker.dimensions(maker.dims(0)[:-2]), *maker.dimensions(maker.dims(0)[-2:], "whole"))
    return maker.map((dims,), (dims,))


def _extreme(maker: Maker) -> DimensionMap | None:
    """ArgMax and its like: the axis is needed whole."""
    shape = maker.dims(0)
    axis = int(maker.node.attribute("axis", 0)) % len(shape)
    dims = tuple(maker.dimension(n, "whole" if a == axis else "kept") for a, n in enumerate(shape))
    kept = bool(maker.node.attribute("keepdims", 1))
    results = tuple(() if a == axis else d for a, d in enumerate(dims) if kept or a != axis)
    return maker.map((dims,), (results,))


rules.register("ArgMax")(_extreme)
rules.register("ArgMin")(_extreme)


@rules.register("TopK")
def top_k(maker: Maker) -> DimensionMap | None:
    """The axis is needed whole."""
    shape, node = maker.dims(0), maker.node
    axis = int(node.attribute("axis", -1)) % len(shape)
    dims = tuple(maker.dimension(n, "whole" if a == axis else "kept") for a, n in enumerate(shape))
    outputs = []
    for number, name in enumerate(node.outputs):
        extent = maker.dimension(maker.out(number)[axis], "whole") if name else ()
        outputs.append((*dims[:axis], extent, *dims[axis + 1 :]) if name else None)
    return maker.map((dims,), outputs)


def _normalised(maker: Maker) -> DimensionMap | None:
    """LayerNormalization and its like: what is normalised is needed whole, rows are kept."""
    shape = maker.dims(0)
    axis = int(maker.node.attribute("axis", -1)) % len(shape)
    dims = tuple(maker.dimension(n, "whole" if a >= axis else "kept") for a, n in enumerate(shape))
    parameters = [
        maker.broadcast(dims, maker.info(name).dims, shape) if name else None
        for name in maker.node.inputs[1:]
    ]
    rows = tuple(() if a >= axis else d for a, d in enumerate(dims))
    outputs = [dims, *(rows if name else None for name in maker.node.outputs[1:])]
    return maker.map((dims, *parameters), outputs)


for _name in ("LayerNormalization", "RMSNormalization"):
    rules.register(_name)(_normalised)


def _channels_apart(maker: Maker) -> DimensionMap | None:
    """InstanceNormalization: images and channels are kept, places are needed whole."""
    shape = maker.dims(0)
    images, channels = maker.dimension(shape[0]), maker.dimension(shape[1])
    dims = (images, channels, *maker.dimensions(shape[2:], "whole"))
    others = ((channels,),) * (len(maker.node.inputs) - 1)
    return maker.map((dims, *others), (dims,))


rules.register("InstanceNormalization")(_channels_apart)


@rules.register("GroupNormalization")
def group_normalisation(maker: Maker) -> DimensionMap | None:
    """Images are kept."""
    dims = (maker.dimension(maker.dims(0)[0]), *maker.dimensions(maker.dims(0)[1:], "whole"))
    others = [maker.whole(name) for name in maker.node.inputs[1:]]
    return maker.map((dims, *others), (dims,))


@rules.register("BatchNormalization")
def batch_normalisation(maker: Maker) -> DimensionMap | None:
    """While inferring every axis is kept; parameters go with channels."""
    node, shape = maker.node, maker.dims(0)
    if len([name for name in node.outputs if name]) != 1 or node.attribute("training_mode", 0):
        return None
    dims = maker.dimensions(shape)
    others = ((dims[1] if len(dims) > 1 else (),),) * (len(node.inputs) - 1)
    return maker.map((dims, *others), (dims, *(None,) * (len(node.outputs) - 1)))
