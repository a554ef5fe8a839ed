"""Pooling by norms, and MeanVarianceNormalization: sums of powers, elementwise operators around.

    LpPool(x)           = (the sum of |x|^p over each window)^(1/p)
    GlobalLpPool(x)     = the same over the whole image
    MeanVariance...(x)  = (x - mean) / (standard deviation + 1e-9)

The sum over a window is a convolution of each channel with ones, which knows steps, dilations and
padding; along three axes it is one over the frames, then one along the depth. p is a whole number
(LpPool 1 to 22, GlobalLpPool 2 to 22, MeanVarianceNormalization 9 to 13).
"""

import math

import numpy as np

from tilesmith.compiler.graph.access import pads, spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions

_LARGEST_POWER = 8
"""What elementwise kernels write as products."""


@decompositions.register("LpPool")
def lp_pool(composer: Composer, node: Node) -> str | None:
    source, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    p, rank = _power(node), len(source) - 2
    if p is None or not 1 <= rank <= 3:
        return None
    norms = _powers(composer, node.inputs[0], p)
    if rank == 3:
        frames = (source[0], source[1] * source[2], *source[3:])
        pooled = (*frames[:2], *result[3:])
        norms = _sums(composer, node, composer.view(norms, frames), slice(1, 3), pooled)
        columns = (*source[:3], math.prod(result[3:]))
        whole = (*result[:3], math.prod(result[3:]))
        norms = _sums(composer, node, composer.view(norms, columns), slice(0, 1), whole)
        norms = composer.view(norms, result)
    else:
        norms = _sums(composer, node, norms, slice(0, rank), result)
    return _root(composer, norms, p)


def _power(node: Node) -> int | None:
    p = float(node.attribute("p", 2))
    return int(p) if p.is_integer() and 1 <= p <= _LARGEST_POWER else None


def _powers(composer: Composer, source: str, p: int) -> str:
    if p % 2:
        source = composer.pointwise("Abs", source)
    if p == 1:
        return source
    if p == 2:
        return composer.pointwise("Mul", source, source)
    return composer.pointwise("Pow", source, composer.number(float(p)))


def _root(composer: Composer, source: str, p: int) -> str:
    if p == 1:
        return source
    if p == 2:
        return composer.pointwise("Sqrt", source)
    return composer.pointwise("Pow", source, composer.number(1 / p))


def _sums(composer: Composer, node: Node, source: str, axes: slice, shape: tuple[int, ...]) -> str:
    """Sums over windows along some of the node's axes, which come first behind the channels."""
    extents = composer.dims(node.inputs[0])[2:]
    kernel = spatial(node, "kernel_shape", len(extents))
    sides = pads(node, extents, kernel)[axes]
    channels, size = composer.dims(source)[1], kernel[axes]
    strides, dilations = (spatial(node, n, len(extents))[axes] for n in ("strides", "dilations"))
    behind = []
    for position, (before, _) in enumerate(sides):  # as far as the last window reaches
        reach = (size[position] - 1) * dilations[position] + 1
        needed = (shape[2 + position] - 1) * strides[position] + reach
        behind.append(needed - before - composer.dims(source)[2 + position])
    first = tuple(before for before, _ in sides)
    further = len(shape) - 2 - len(size)
    size, strides, dilations, first = (
        (*numbers, *[rest] * further)
        for numbers, rest in ((size, 1), (strides, 1), (dilations, 1), (first, 0))
    )
    kept = composer.dims(source)
    if min(behind) < 0:  # what no window reaches
        ends = np.array(kept) + np.minimum([0, 0, *behind, *[0] * further], 0)
        source = composer.slice(source, np.zeros_like(ends), ends)
    last = tuple(max(0, side) for side in (*behind, *[0] * further))
    ones = composer.constant(np.ones((channels, 1, *size), np.float32))
    return composer.apply(
        "Conv", source, ones, shape=shape, group=channels, kernel_shape=size, strides=strides,
        dilations=dilations, pads=(*first, *last),
    )  # fmt: skip


@decompositions.register("GlobalLpPool")
def global_lp_pool(composer: Composer, node: Node) -> str | None:
    p, source = _power(node), composer.dims(node.inputs[0])
    if p is None or len(source) < 3:
        return None
    powers = _powers(composer, node.inputs[0], p)
    total = composer.reduce("ReduceSum", powers, range(2, len(source)))
    return _root(composer, total, p)


@decompositions.register("MeanVarianceNormalization")
def mean_variance_normalization(composer: Composer, node: Node) -> str:
    x, rank = node.inputs[0], len(composer.dims(node.inputs[0]))
    given = node.attribute("axes") or (0, 2, 3)
    axes = tuple(sorted({int(axis) % rank for axis in given}))
    centred = composer.pointwise("Sub", x, composer.reduce("ReduceMean", x, axes))
    square = composer.pointwise("Mul", centred, centred)
    spread = composer.pointwise("Sqrt", composer.reduce("ReduceMean", square, axes))
    below = composer.pointwise("Add", spread, composer.number(1e-9))
    return composer.pointwise("Div", centred, below)
