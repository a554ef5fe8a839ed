"""Operators that `onnx.reference` computes wrongly or not at all, in numpy.

Found by comparing with onnxruntime: grouped ConvTranspose fails there, and the indices of MaxPool
are not those the standard describes. Each function takes the node's attributes and inputs and
returns its outputs. Invariant: any number of spatial axes; values as ONNX's text defines them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Attributes = Mapping[str, Any]
Array = NDArray[Any]


def conv_transpose(attributes: Attributes, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """y[n, o, i s + k d - p] += x[n, c, i] w[c, o, k], group by group."""
    x, w = inputs[0], inputs[1]
    rank, groups = x.ndim - 2, int(attributes.get("group", 1))
    kernel, strides, dilations = w.shape[2:], *_steps(attributes, rank)
    full = _full(x.shape[2:], kernel, strides, dilations)
    before, after = transposed_crops(attributes, x.shape[2:], kernel)
    room = [size + max(0, -b) for size, b in zip(full, after, strict=True)]
    split_x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    split_w = w.reshape(groups, -1, *w.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[1], *room), dtype=x.dtype)
    for tap in np.ndindex(*kernel):
        part = np.einsum("ngc...,gco->ngo...", split_x, split_w[_last(tap)])
        places = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
        )
        y[_last(places)] += part
    y = y.reshape(x.shape[0], -1, *room)
    ends = [size - a for size, a in zip(full, after, strict=True)]
    y = y[_last(tuple(slice(b, e) for b, e in zip(before, ends, strict=True)))]
    if len(inputs) > 2:
        y = y + inputs[2].reshape(-1, *[1] * rank)
    return (y,)


def _last(places: tuple[Any, ...]) -> Any:
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


def max_pool(attributes: Attributes, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The maximum of each window and its index in the flattened input."""
    (x,) = inputs
    kernel = list(attributes["kernel_shape"])
    rank = len(kernel)
    strides, dilations = _steps(attributes, rank)
    before, counts = _windows(attributes, x.shape[2:], kernel, strides, dilations)
    numbers = np.arange(x.size).reshape(x.shape)
    if attributes.get("storage_order", 0):
        order = (*range(2), *reversed(range(2, x.ndim)))
        shape = tuple(x.shape[axis] for axis in order)
        numbers = np.arange(x.size).reshape(shape).transpose(order)
    best = np.full((*x.shape[:2], *counts), -np.inf)
    found = np.zeros(best.shape, dtype=np.int64)
    for tap in itertools.product(*map(range, kernel)):
        values, places = x, numbers
        inside = np.ones((1,) * x.ndim, dtype=bool)
        for axis in range(2, x.ndim):
            i = axis - 2
            place = np.arange(counts[i]) * strides[i] + tap[i] * dilations[i] - before[i]
            valid = (place >= 0) & (place < x.shape[axis])
            inside = inside & valid.reshape((-1,) + (1,) * (x.ndim - axis - 1))
            values = values.take(place, axis=axis, mode="clip")
            places = places.take(place, axis=axis, mode="clip")
        better = (values > best) & inside
        best = np.where(better, values, best)
        found = np.where(better, places, found)
    return best.astype(x.dtype), found


def _windows(
    attributes: Attributes,
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Padding before, and number of windows along, each axis."""
    rank, mode = len(kernel), attributes.get("auto_pad", "NOTSET")
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    counts: list[int] = []
    for axis in range(rank):
        extent, stride = extents[axis], strides[axis]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if mode.startswith("SAME"):
            count = -(-extent // stride)
            total = max(0, (count - 1) * stride + reach - extent)
            pads[axis] = total // 2 if mode == "SAME_UPPER" else total - total // 2
            counts.append(count)
            continue
        room = extent + pads[axis] + pads[rank + axis] - reach
        rounded = stride - 1 if attributes.get("ceil_mode", 0) else 0
        count = (room + rounded) // stride + 1
        while count > 1 and rounded and (count - 1) * stride >= extent + pads[axis]:
            count -= 1
        counts.append(count)
    return pads[:rank], counts


OPERATORS: dict[str, Callable[[Attributes, Sequence[Array]], tuple[Array, ...]]] = {
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
}
"""What is computed here instead of by `onnx.reference`, by ONNX operator."""
