"""Hardmax, EyeLike, OneHot of other indices, LpNormalization, CenterCropPad, ReverseSequence.

    Hardmax(x)          = OneHot(ArgMax(x))
    LpNormalization(x)  = x / norm(x), 0 where that is 0
    ReverseSequence(x)  = entries of each sequence, gathered from its end to its start

Semantics of Hardmax 1 to 13, EyeLike 9 to 22, OneHot 11, LpNormalization 1 to 22, CenterCropPad 18
and ReverseSequence 10.
"""

import math

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import (
    Composer,
    decompositions,
    typed_decompositions,
)


@decompositions.register("Hardmax")
def hardmax(composer: Composer, node: Node) -> str:
    x, dims = node.inputs[0], composer.dims(node.inputs[0])
    flat = composer.opset < 13  # what follows the axis is one
    axis = int(node.attribute("axis", 1 if flat else -1)) % max(len(dims), 1)
    if flat:
        x = composer.view(x, (math.prod(dims[:axis]), math.prod(dims[axis:])))
        axis = 1
    inside = composer.dims(x)
    places = (*inside[:axis], *inside[axis + 1 :])
    highest = composer.newest("ArgMax", x, shape=places, dtype="int64", axis=axis, keepdims=0)
    count = composer.constant(np.array([inside[axis]]))
    values = composer.constant(np.array([0, 1], np.float32))
    return composer.view(
        composer.newest("OneHot", highest, count, values, shape=inside, axis=axis), dims
    )


@typed_decompositions.register("EyeLike")
def eye_like(composer: Composer, node: Node) -> str | None:
    """No element of the input has a part in it."""
    dims = composer.dims(node.writes[0])
    if len(dims) != 2:
        return None
    eye = np.eye(*dims, k=int(node.attribute("k", 0)), dtype=np.float32)
    return composer.cast(composer.constant(eye), composer.dtype(node.writes[0]))


@typed_decompositions.register("OneHot")
def one_hot(composer: Composer, node: Node) -> str | None:
    """Of indices that are no whole numbers of 32 or 64 bits."""
    indices, depth, values = node.inputs
    if composer.dtype(indices) in ("int64", "int32"):
        return None
    shape, dtype = composer.dims(node.writes[0]), composer.dtype(values)
    whole = composer.cast(indices, "int64")
    axis = int(node.attribute("axis", -1))
    return composer.newest("OneHot", whole, depth, values, shape=shape, dtype=dtype, axis=axis)


@decompositions.register("LpNormalization")
def lp_normalization(composer: Composer, node: Node) -> str | None:
    x, dims = node.inputs[0], composer.dims(node.inputs[0])
    axis, p = int(node.attribute("axis", -1)) % len(dims), int(node.attribute("p", 2))
    if p not in (1, 2):
        return None
    norm = composer.reduce(f"ReduceL{p}", x, (axis,))
    nothing = composer.pointwise("Equal", norm, composer.number(0.0), dtype="bool")
    divisor = composer.pointwise("Where", nothing, composer.number(1.0), norm)
    return composer.pointwise("Div", x, divisor)


@decompositions.register("CenterCropPad")
def center_crop_pad(composer: Composer, node: Node) -> str | None:
    """Cut and filled up alike on both sides of each axis; what is odd goes behind."""
    source, dims = node.inputs[0], composer.dims(node.inputs[0])
    wanted = composer.dims(node.writes[0])
    starts = [max(n - m, 0) // 2 for n, m in zip(dims, wanted, strict=True)]
    ends = [at + min(n, m) for at, n, m in zip(starts, dims, wanted, strict=True)]
    if (any(starts) or tuple(ends) != dims) and composer.opset >= 10:
        source = composer.slice(source, np.array(starts), np.array(ends))
    missing = [m - n for n, m in zip(composer.dims(source), wanted, strict=True)]
    before = tuple(n // 2 for n in missing)
    after = tuple(n - first for n, first in zip(missing, before, strict=True))
    return composer.pad(source, before, after)


@typed_decompositions.register("ReverseSequence")
def reverse_sequence(composer: Composer, node: Node) -> str | None:
    x, lengths = node.inputs
    dims, dtype = composer.dims(x), composer.dtype(x)
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    if {batch, time} != {0, 1} or composer.dtype(lengths) != "int64":
        return None
    count, steps = dims[batch], dims[time]
    ends = composer.view(lengths, (count, 1))
    place = composer.constant(np.arange(steps)[None])
    last = composer.pointwise("Sub", ends, composer.constant(np.array(1)), dtype="int64")
    turned = composer.pointwise("Sub", last, place, dtype="int64")
    inside = composer.pointwise("Less", place, ends, dtype="bool")
    places = composer.pointwise("Where", inside, turned, place, dtype="int64")
    order = (batch, time, *range(2, len(dims)))
    rows = x if batch == 0 else composer.transpose(x, order)
    indices = composer.view(places, (count, steps, 1))
    whole = composer.dims(rows)
    picked = composer.newest("GatherND", rows, indices, shape=whole, dtype=dtype, batch_dims=1)
    return picked if batch == 0 else composer.transpose(picked, order)
