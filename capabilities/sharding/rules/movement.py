"""Operators that move elements: reshaping, transposing, joining and splitting.

What a reshape joins or splits are the digits of a number in mixed radix: dimensions of either side
are products of the same factors, wherever the boundaries of both sides nest. A dimension that a
Concat makes of equal parts, or a Split of such, is `(parts, length)`: cutting the length cuts
each of the parts, as a fused projection to queries, keys and values is cut by heads.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.capabilities.sharding.layouts.dimension_maps import (
    DimensionMap,
    Factors,
    Local,
    Maker,
    rules,
)
from tilesmith.compiler.graph.graph import Node, attributes_of

_ALL_LINEAR = ((0,),)


def reshape(maker: Maker) -> DimensionMap | None:
    """Dimensions of both sides as products of the same factors."""
    source, result = maker.dims(0), maker.out()
    given, outgoing = common_factors(maker, source, result)
    return maker.map((given,), (outgoing,), linear=_ALL_LINEAR, localise=_reshaped)


def common_factors(
    maker: Maker, source: Sequence[int], result: Sequence[int]
) -> tuple[tuple[Factors, ...], tuple[Factors, ...]]:
    """The dimensions of two shapes of as many elements as factors of both."""
    total = math.prod(source)
    if total == 0:
        return maker.dimensions(source, "whole"), maker.dimensions(result, "whole")
    chain = _nested(_boundaries(source), _boundaries(result))
    numbers: dict[tuple[int, int], int] = {}

    def of(shape: Sequence[int]) -> tuple[Factors, ...]:
        dims, after = [], total
        for size in shape:
            before, after = after, after // size
            inside = [b for b in chain if after <= b <= before]
            pairs = list(itertools.pairwise(sorted(inside, reverse=True)))
            whole = before in chain and after in chain
            if not whole:
                dims.append(maker.dimension(size, "whole"))
                continue
            for pair in pairs:
                if pair not in numbers:
                    numbers[pair] = maker.factor(pair[0] // pair[1])
            dims.append(tuple(numbers[pair] for pair in pairs))
        return tuple(dims)

    return of(source), of(result)


def _boundaries(shape: Sequence[int]) -> set[int]:
    """How many elements lie inside each boundary between dimensions."""
    return {math.prod(shape[number:]) for number in range(len(shape) + 1)}


def _nested(first: set[int], second: set[int]) -> set[int]:
    """Boundaries at which both sides can be cut: each one a multiple of the next.

    Between two boundaries that both sides have, those of one side are kept if they nest with those
    of the other, and else none.
    """
    shared = sorted(first & second)
    kept = set(shared)
    for low, high in itertools.pairwise(shared):
        inside = sorted(b for b in first | second if low < b < high)
        ladder = [low, *inside, high]
        if all(big % small == 0 for small, big in itertools.pairwise(ladder)):
            kept.update(inside)
    return kept


def _reshaped(node: Node, local: Local) -> Sequence[Node]:
    """A Reshape to the shape that the output has on one core."""
    shape = np.array(local.shape(node.outputs[0]), np.int64)
    name = local.constant(f"{node.outputs[0]}.shape", shape)
    return (Node("Reshape", (node.inputs[0], name), node.outputs, node.name),)


for _name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
    rules.register(_name)(reshape)


@rules.register("View")
def view(maker: Maker) -> DimensionMap | None:
    """A Reshape, if it is of the whole tensor."""
    whole = math.prod(maker.dims(0)) == math.prod(maker.out())
    return reshape(maker) if whole and not maker.node.attribute("offset", 0) else None


@rules.register("Transpose")
def transpose(maker: Maker) -> DimensionMap | None:
    """The input's axes in another order."""
    given = maker.dimensions(maker.dims(0))
    order = maker.node.attribute("perm") or tuple(reversed(range(len(given))))
    return maker.map((given,), (tuple(given[axis] for axis in order),), linear=_ALL_LINEAR)


@rules.register("Expand")
def expand(maker: Maker) -> DimensionMap | None:
    """Axes of the input are the output's; those it is repeated along need no input."""
    result = maker.dimensions(maker.out())
    given = maker.broadcast(result, maker.dims(0), maker.out())

    def localised(node: Node, local: Local) -> Sequence[Node]:
        shape = np.array(local.shape(node.outputs[0]), np.int64)
        name = local.constant(f"{node.outputs[0]}.shape", shape)
        return (replace(node, inputs=(node.inputs[0], name)),)

    return maker.map((given,), (result,), linear=_ALL_LINEAR, localise=localised)


@rules.register("Concat")
def concat(maker: Maker) -> DimensionMap | None:
    """Every axis but the one joined along is kept; of equal parts that one, too, within each."""
    node, shape = maker.node, maker.out()
    axis = int(node.attribute("axis", 0)) % len(shape)
    lengths = [maker.dims(number)[axis] for number in range(len(node.inputs))]
    result = [*maker.dimensions(shape[:axis]), (), *maker.dimensions(shape[axis + 1 :])]
    if len(set(lengths)) == 1:
        parts, inner = maker.dimension(len(lengths), "whole"), maker.dimension(lengths[0])
        along: list[Factors] = [inner] * len(lengths)
        result[axis] = (*parts, *inner)
    else:
        along = [maker.dimension(length, "whole") for length in lengths]
        result[axis] = maker.dimension(shape[axis], "whole")
    inputs = [(*result[:axis], own, *result[axis + 1 :]) for own in along]
    return maker.map(inputs, (tuple(result),), linear=(tuple(range(len(inputs))),))


@rules.register("Split")
def split(maker: Maker) -> DimensionMap | None:
    """As Concat, the other way round."""
    node, shape = maker.node, maker.dims(0)
    axis = int(node.attribute("axis", 0)) % len(shape)
    lengths = [
        maker.out(number)[axis] for number in range(len(node.outputs)) if node.outputs[number]
    ]
    if len(lengths) < len(node.outputs):
        return None
    given = [*maker.dimensions(shape[:axis]), (), *maker.dimensions(shape[axis + 1 :])]
    if len(set(lengths)) == 1:
        parts, inner = maker.dimension(len(lengths), "whole"), maker.dimension(lengths[0])
        along: list[Factors] = [inner] * len(lengths)
        given[axis] = (*parts, *inner)
    else:
        along = [maker.dimension(length, "whole") for length in lengths]
        given[axis] = maker.dimension(shape[axis], "whole")
    outputs = [(*given[:axis], own, *given[axis + 1 :]) for own in along]
    sizes = node.input(1)

    def localised(node: Node, local: Local) -> Sequence[Node]:
        lengths = [local.shape(name)[axis] for name in node.outputs]
        if sizes:
            name = local.constant(f"{node.outputs[0]}.split", np.array(lengths, np.int64))
            return (replace(node, inputs=(node.inputs[0], name)),)
        if node.attribute("split") is not None:
            others = {k: v for k, v in node.attributes if k != "split"}
            return (replace(node, attributes=attributes_of(split=tuple(lengths), **others)),)
        return (node,)

    return maker.map((tuple(given),), outputs, linear=_ALL_LINEAR, localise=localised)


@rules.register("Slice")
def slice_(maker: Maker) -> DimensionMap | None:
    """Axes that are taken whole are kept; of the others bounds count the whole axis."""
    source, result = maker.dims(0), maker.out()
    if len(maker.node.inputs) < 3:
        return None  # of an opset whose bounds are attributes
    bounds = [maker.constant(number) for number in range(1, len(maker.node.inputs))]
    given, written = [], []
    kept = all(bound is not None for bound in bounds)
    steps = bounds[3] if len(bounds) > 3 else None
    kept = kept and (steps is None or bool((steps > 0).all()))
    for size, left in zip(source, result, strict=True):
        whole = size == left and kept
        given.append(maker.dimension(size, "kept" if whole else "whole"))
        written.append(given[-1] if whole else maker.dimension(left, "whole"))
    return maker.map((tuple(given),), (tuple(written),), linear=_ALL_LINEAR)


@rules.register("Pad")
def pad(maker: Maker) -> DimensionMap | None:
    """Axes that get no padding are kept."""
    source, result = maker.dims(0), maker.out()
    given, written = [], []
    pads = maker.constant(1)
    if pads is None or maker.node.input(3):
        return None
    rank = len(source)
    for axis, (size, left) in enumerate(zip(source, result, strict=True)):
        if not pads[axis] and not pads[rank + axis]:
            given.append(maker.dimension(size))
            written.append(given[-1])
        else:
            given.append(maker.dimension(size, "whole"))
            written.append(maker.dimension(left, "whole"))
    return maker.map((tuple(given),), (tuple(written),))
