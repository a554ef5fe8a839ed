"""Operators of sliding windows on the host, in numpy: any number of spatial axes.

`onnx.reference` fails at grouped ConvTranspose, forgets dilations where a convolution's padding is
automatic, gives other indices of MaxPool than the standard describes, and forgets which windows
`ceil_mode` adds. Invariant: a window that starts in the
padding behind an axis is no window (ONNX, Pool operators since opset 1); what `ceil_mode` reaches
behind the padding is not counted in an average.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilesmith.compiler.host.operators.call import (
    Array,
    Attributes,
    OperatorCall,
    Results,
    host_operator,
)


@host_operator("ConvTranspose")
def conv_transpose(call: OperatorCall) -> Results:
    """y[n, o, i s + k d - p] += x[n, c, i] w[c, o, k], group by group."""
    attributes, inputs = call.attributes, call.inputs
    x, w = inputs[0], inputs[1]
    rank, groups = x.ndim - 2, int(attributes.get("group", 1))
    kernel, strides, dilations = w.shape[2:], *_steps(attributes, rank)
    full = _full(x.shape[2:], kernel, strides, dilations)
    before, after = transposed_crops(attributes, x.shape[2:], kernel)
    room = [size + max(0, -b) for size, b in zip(full, after, strict=True)]
    split_x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    split_w = w.reshape(groups, -1, *w.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[1], *room), dtype=x.dtype)
    for tap in np.ndindex(*kernel):
        part = np.einsum("ngc...,gco->ngo...", split_x, split_w[last_axes(tap)])
        places = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
        )
        y[last_axes(places)] += part
    y = y.reshape(x.shape[0], groups * w.shape[1], *room)
    ends = [size - a for size, a in zip(full, after, strict=True)]
    y = y[last_axes(tuple(slice(b, e) for b, e in zip(before, ends, strict=True)))]
    if len(inputs) > 2:
        y = y + inputs[2].reshape(-1, *[1] * rank)
    return (y,)


def last_axes(places: tuple[Any, ...]) -> Any:
    """An index of the last axes."""
    return cast(Any, (..., *places))


def _steps(attributes: Attributes, rank: int) -> tuple[Sequence[int], Sequence[int]]:
    ones = [1] * rank
    return attributes.get("strides") or ones, attributes.get("dilations") or ones


def _full(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Extents that a transposed convolution reaches, nothing cut off."""
    return [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(extents, strides, kernel, dilations, strict=True)
    ]


def transposed_crops(
    attributes: Attributes, extents: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Elements a ConvTranspose cuts off before and after each axis (negative: zeros put there)."""
    rank, mode = len(extents), attributes.get("auto_pad", "NOTSET")
    strides, dilations = _steps(attributes, rank)
    full = _full(extents, kernel, strides, dilations)
    extra = attributes.get("output_padding") or [0] * rank
    wanted = attributes.get("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(extents, strides, strict=True)]
    if wanted is None:
        pads = attributes.get("pads") or [0] * (2 * rank)
        return list(pads[:rank]), [p - e for p, e in zip(pads[rank:], extra, strict=True)]
    before, after = [], []
    for size, target, more in zip(full, wanted[-rank:], extra, strict=True):
        total = size + more - target
        small, large = total // 2, total - total // 2
        first, last = (small, large) if mode == "SAME_UPPER" else (large, small)
        before.append(first)
        after.append(last - more)
    return before, after


@host_operator("Conv")
def conv(call: OperatorCall) -> Results:
    """y[n, o, i] = sum of x[n, c, i s + k d - p] w[o, c, k] over c and k, group by group."""
    x, w = call.inputs[0], call.inputs[1]
    groups, rank = int(call.attributes.get("group", 1)), x.ndim - 2
    windows = _Windows.of(call, w.shape[2:])
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, math.prod(windows.counts)), _wide(x))
    split = w.reshape(groups, -1, *w.shape[1:]).astype(y.dtype)
    for tap, (places, inside) in zip(np.ndindex(*w.shape[2:]), windows.taps(), strict=True):
        part = np.where(inside, _taken(x, places), 0).astype(y.dtype)
        y += split[last_axes(tap)] @ part.reshape(x.shape[0], groups, w.shape[1], y.shape[-1])
    result = y.reshape(x.shape[0], w.shape[0], *windows.counts)
    if call.input(2) is not None:
        result = result + call.input(2).reshape(-1, *[1] * rank)
    return (result.astype(x.dtype),)


@host_operator("GlobalAveragePool")
def global_average_pool(call: OperatorCall) -> Results:
    """The mean over all spatial axes."""
    (x,) = call.inputs
    axes = tuple(range(2, x.ndim))
    return (x.mean(axis=axes, keepdims=True, dtype=_wide(x)).astype(x.dtype),)


@host_operator("GlobalMaxPool")
def global_max_pool(call: OperatorCall) -> Results:
    """The maximum over all spatial axes, however many; `onnx.reference` knows two."""
    (x,) = call.inputs
    return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


@host_operator("GlobalLpPool")
def global_lp_pool(call: OperatorCall) -> Results:
    """The p-norm over all spatial axes."""
    (x,) = call.inputs
    p = float(call.attributes.get("p", 2))
    powers = np.abs(x.astype(_wide(x))) ** p
    norms = powers.sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
    return (norms.astype(x.dtype),)


@host_operator("MaxPool")
def max_pool(call: OperatorCall) -> Results:
    """The maximum of each window and its index in the flattened input."""
    (x,) = call.inputs
    windows = _Windows.of(call)
    numbers = np.arange(x.size).reshape(x.shape)
    if call.attributes.get("storage_order", 0):
        order = (*range(2), *reversed(range(2, x.ndim)))
        shape = tuple(x.shape[axis] for axis in order)
        numbers = np.arange(x.size).reshape(shape).transpose(order)
    best = np.full((*x.shape[:2], *windows.counts), -np.inf)
    argmax = np.zeros(best.shape, dtype=np.int64)
    for places, inside in windows.taps():
        values, indices = _taken(x, places), _taken(numbers, places)
        better = (values > best) & inside
        best = np.where(better, values, best)
        argmax = np.where(better, indices, argmax)
    return best.astype(x.dtype), argmax


@host_operator("AveragePool")
def average_pool(call: OperatorCall) -> Results:
    """The mean of each window: of its elements inside, or of those in the padding, too."""
    (x,) = call.inputs
    windows = _Windows.of(call)
    padded = bool(call.attributes.get("count_include_pad", 0))
    total = np.zeros((*x.shape[:2], *windows.counts), _wide(x))
    count = np.zeros(windows.counts, np.int64)
    for places, inside in windows.taps():
        total += np.where(inside, _taken(x, places), 0)
        count += windows.inside(places, padded=True) if padded else inside
    return ((total / np.maximum(count, 1)).astype(x.dtype),)


@host_operator("LpPool")
def lp_pool(call: OperatorCall) -> Results:
    """The p-norm of each window; padding adds nothing."""
    (x,) = call.inputs
    windows, p = _Windows.of(call), float(call.attributes.get("p", 2))
    total = np.zeros((*x.shape[:2], *windows.counts), _wide(x))
    for places, inside in windows.taps():
        total += np.where(inside, np.abs(_taken(x, places)).astype(total.dtype) ** p, 0)
    return ((total ** (1 / p)).astype(x.dtype),)


def _wide(x: Array) -> Any:
    """The dtype sums are taken in."""
    return np.result_type(x.dtype, np.float32)


def _taken(x: Array, places: Sequence[Array]) -> Array:
    """x at the places of each spatial axis; those outside of it are clipped."""
    for axis, place in enumerate(places, start=2):
        x = x.take(place, axis=axis, mode="clip")
    return x


@dataclass(frozen=True)
class _Windows:
    """Where windows lie, per spatial axis."""

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    """Elements of padding before an axis,"""
    after: tuple[int, ...]
    """and behind it."""
    counts: tuple[int, ...]

    @classmethod
    def of(cls, call: OperatorCall, kernel: tuple[int, ...] = ()) -> "_Windows":
        """Of an operator's first input and attributes; `kernel`, where those do not tell it."""
        attributes, extents = call.attributes, call.inputs[0].shape[2:]
        kernel = kernel or tuple(attributes["kernel_shape"])
        strides, dilations = (tuple(steps) for steps in _steps(attributes, len(kernel)))
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        before, after = _pads(attributes, extents, reaches, strides)
        counts = [
            _count(extent, sides, reach, stride, bool(attributes.get("ceil_mode", 0)))
            for extent, *sides, reach, stride in zip(
                extents, before, after, reaches, strides, strict=True
            )
        ]
        if str(attributes.get("auto_pad", "")).startswith("SAME"):
            counts = [-(-extent // stride) for extent, stride in zip(extents, strides, strict=True)]
        return cls(extents, kernel, strides, dilations, before, after, tuple(counts))

    def taps(self) -> Iterator[tuple[list[Array], Array]]:
        """For every element of the window: its places along each axis, and which are inside."""
        for tap in itertools.product(*map(range, self.kernel)):
            places = [
                np.arange(count) * stride + t * dilation - before
                for count, stride, t, dilation, before in zip(
                    self.counts, self.strides, tap, self.dilations, self.before, strict=True
                )
            ]
            yield places, self.inside(places)

    def inside(self, places: Sequence[Array], padded: bool = False) -> Array:
        """Which windows' places lie inside the input, or inside the padding around it."""
        axes = [
            (place >= 0) & (place < extent)
            if not padded
            else (place >= -before) & (place < extent + after)
            for place, extent, before, after in zip(
                places, self.extents, self.before, self.after, strict=True
            )
        ]
        mask = np.ones((), dtype=bool)
        for axis in axes:
            mask = mask[..., None] & axis
        return np.asarray(mask)


def _pads(
    attributes: Attributes, extents: Sequence[int], reaches: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements of padding before and behind each axis."""
    rank, mode = len(extents), attributes.get("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        totals = [
            max(0, (-(-extent // stride) - 1) * stride + reach - extent)
            for extent, reach, stride in zip(extents, reaches, strides, strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return (
            (tuple(small), tuple(large)) if mode == "SAME_UPPER" else (tuple(large), tuple(small))
        )
    pads = (0,) * (2 * rank) if mode == "VALID" else attributes.get("pads") or (0,) * (2 * rank)
    return tuple(pads[:rank]), tuple(pads[rank:])


def _count(extent: int, sides: Sequence[int], reach: int, stride: int, ceil: bool) -> int:
    """Number of windows along an axis with explicit padding, as ONNX infers it: one, too, where
    the window exceeds the padded axis by less than a step."""
    before, after = sides
    room = extent + before + after - reach
    count = max(0, math.trunc((room + (stride - 1 if ceil else 0)) / stride) + 1)
    while ceil and count > 1 and (count - 1) * stride >= extent + before:
        count -= 1
    return count
