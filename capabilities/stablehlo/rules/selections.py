"""Gradients of pooling by an extreme: each window's number goes to the element that was chosen.

Which element of a window was chosen is counted first, one place of the window after the other; then
each place takes the numbers of the windows that chose it.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import choose
from tilesmith.capabilities.stablehlo.attributes import integers, pairs
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.rules.reductions import COMBINERS, ReductionBody, identity
from tilesmith.capabilities.stablehlo.rules.shapes import cut, pad, spread_out
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy

_LARGEST = 1024
"""Elements of a window up to which each place is looked at on its own."""


@rules.register("stablehlo.select_and_scatter")
def _select_and_scatter(translation: Translation, operation: Any, values: Values) -> Values:
    b, (x, source, initial) = translation.builder, values
    rank = len(x.shape)
    ones = (1,) * rank
    sizes, strides = (
        integers(operation, name, ones) for name in ("window_dimensions", "window_strides")
    )
    low, high = zip(*pairs(operation, "padding", rank), strict=True) if rank else ((), ())
    kind = ReductionBody(translation, operation, 1).kind(x.dtype)
    if kind not in COMBINERS:
        raise translation.refuse(
            operation,
            "joins numbers by a function of its own; adding, multiplying, and the larger or "
            "smaller of both are supported",
        )
    if math.prod(sizes) > _LARGEST:
        raise translation.refuse(
            operation,
            f"has windows of {math.prod(sizes)} elements; up to {_LARGEST} are supported",
        )
    if 0 in (*x.shape, *source.shape):
        return [replace(initial, shape=x.shape)]
    select = ReductionBody(translation, operation)
    outermost = _never_chosen(b, select, x) if any((*low, *high)) else initial
    padded = pad(b, x, outermost, low, high)
    chosen = _chosen(b, select, padded, source.shape, sizes, strides)
    nothing = b.constant(np.array(identity(kind, x.dtype)), x.dtype)
    if sizes == strides:
        scattered = _side_by_side(b, source, chosen, sizes, nothing, padded.shape)
    else:
        scattered = _overlapping(b, kind, source, chosen, (sizes, strides), nothing, padded.shape)
    scattered = pad(
        b, scattered, nothing, tuple(-side for side in low), tuple(-side for side in high)
    )
    known = b.single(initial)
    if known is not None and known == b.single(nothing):
        return [scattered]
    return [b.elementwise(COMBINERS[kind], scattered, replace(initial, shape=x.shape))]


def _never_chosen(b: GraphBuilder, select: ReductionBody, x: TensorValue) -> TensorValue:
    """What stands around a tensor: the number that is chosen last."""
    (larger,) = select([b.like(2, x)], [b.like(1, x)])
    if is_floating(x.dtype):
        number: Any = -np.inf if b.single(larger) else np.inf
    else:
        limits = np.iinfo(to_numpy(x.dtype))
        number = limits.min if b.single(larger) else limits.max
    return b.constant(np.array(number), x.dtype)


def _chosen(
    b: GraphBuilder,
    select: ReductionBody,
    x: TensorValue,
    shape: Shape,
    sizes: Shape,
    strides: Shape,
) -> TensorValue:
    """For each window the number of the place that is chosen, counted row by row."""
    best = place = None
    for number, offset in enumerate(np.ndindex(*sizes)):
        ends = tuple(
            start + (extent - 1) * stride + 1
            for start, extent, stride in zip(offset, shape, strides, strict=True)
        )
        here = cut(b, x, tuple(offset), ends, strides)
        mine = b.constant(np.array(number, np.int32))
        if best is None or place is None:
            best, place = here, replace(mine, shape=shape)
            continue
        (stays,) = select([best], [here])
        best, place = choose(b, stays, best, here), choose(b, stays, place, mine)
    assert place is not None, "windows have elements"
    return place


def _side_by_side(
    b: GraphBuilder,
    source: TensorValue,
    chosen: TensorValue,
    sizes: Shape,
    nothing: TensorValue,
    shape: Shape,
) -> TensorValue:
    """Windows that do not overlap: every element is of one window at most."""
    rank = len(sizes)
    apart = tuple(n for extent in source.shape for n in (extent, 1))
    inside = tuple(n for size in sizes for n in (1, size))
    numbers = np.arange(math.prod(sizes), dtype=np.int32).reshape(inside)
    own = b.elementwise(
        "Equal", b.reshape(b.full(chosen), apart), b.constant(numbers), dtype="bool"
    )
    spread = choose(b, own, b.reshape(b.full(source), apart), nothing)
    joined = tuple(extent * size for extent, size in zip(source.shape, sizes, strict=True))
    high = tuple(whole - part for whole, part in zip(shape, joined, strict=True))
    return pad(b, b.reshape(b.full(spread), joined), nothing, (0,) * rank, high)


def _overlapping(
    b: GraphBuilder, kind: str, source: TensorValue, chosen: TensorValue, windows: tuple[Shape,
    Shape],
    nothing: TensorValue, shape: Shape,
) -> TensorValue:  # fmt: skip
    """Every place of the window on its own, put where it lies and joined."""
    sizes, strides = windows
    total: TensorValue | None = None
    for number, offset in enumerate(np.ndindex(*sizes)):
        mine = b.constant(np.array(number, np.int32))
        own = b.elementwise("Equal", chosen, mine, dtype="bool")
        part = b.full(choose(b, own, source, nothing))
        part = spread_out(b, part, nothing, tuple(stride - 1 for stride in strides))
        high = tuple(
            whole - extent - start
            for whole, extent, start in zip(shape, part.shape, offset, strict=True)
        )
        part = pad(b, part, nothing, tuple(offset), high)
        total = part if total is None else b.elementwise(COMBINERS[kind], total, part)
    assert total is not None, "windows have elements"
    return total
