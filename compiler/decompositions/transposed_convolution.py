"""ConvTranspose of one to three spatial axes -> Conv; where it strides, its channels interleaved.

Output pixel i s + k - p sums x[i] w[k]. All pixels of one remainder r modulo the stride s read the
same taps k = r, r + s, ..., so each remainder is a convolution of x with its own, shorter filter;
they are computed as s s times as many channels and interleaved, as DepthToSpace does:

    y[q s + r - p] = sum_j x[q - j] w[j s + r]          j < ceil(kernel / s)

No multiplication by the zeros that a stride puts between pixels; a dilated filter that strides is
one with zeros between its taps. Weights have to be constant; the rest stays on the host.

Where moving elements costs more than multiplying zeros (`spreading`), zeros are put between the
pixels after all: the image is repeated to the nearest, times a mask, and convolved with the filter
turned round. Up to `MOST_ZEROS` times as many products are made so. The mask is as large as the
image, so that it is laid out as the image is: no number has to be spread over its channels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.decomposition import Composer, decompositions, spreading
from tilesmith.compiler.graph import Node
from tilesmith.compiler.host.windows import transposed_crops
from tilesmith.compiler.onnx.access import spatial
from tilesmith.search_space.workload import shape_text

MOST_ZEROS = 16
"""Pixels, zeros included, that one pixel becomes at most."""


@decompositions.register("ConvTranspose")
def conv_transpose(composer: Composer, node: Node) -> str | None:
    weight, bias = composer.value(node.inputs[1]), node.input(2)
    shifts = composer.value(bias) if bias else np.zeros(0, np.float32)
    shape, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    rank, groups = len(shape) - 2, int(node.attribute("group", 1))
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    if weight is None or shifts is None or rank not in (1, 2, 3):
        return None
    before, _ = transposed_crops(dict(node.attributes), shape[2:], weight.shape[2:])
    weight, dilations = _spread(weight, strides, dilations)
    filters = _filters(weight, groups, strides)
    taps = filters.shape[2:]
    pads: list[tuple[int, int]] = []
    rest: list[int] = []
    for axis, (n, stride, dilation) in enumerate(zip(shape[2:], strides, dilations, strict=True)):
        skipped, crop = divmod(before[axis], stride)
        reach = (taps[axis] - 1) * dilation
        needed = -(-(crop + result[2 + axis]) // stride)
        pads.append((reach - skipped, needed - n + skipped))
        rest.append(crop)
    if min(min(pair) for pair in pads) < 0:
        return None
    phases = math.prod(strides)
    sources = [node.inputs[0], composer.constant(filters)]
    if bias:
        sources.append(composer.constant(np.repeat(shifts, phases)))
    wide = tuple(-(-(c + n) // s) for c, n, s in zip(rest, result[2:], strides, strict=True))
    convolved = composer.apply(
        "Conv", *sources, shape=(shape[0], result[1] * phases, *wide),
        kernel_shape=tuple(taps), group=groups, dilations=dilations,
        pads=tuple(side for pair in zip(*pads, strict=True) for side in pair),
    )  # fmt: skip
    whole = _interleaved(composer, convolved, strides) if phases > 1 else convolved
    return _cropped(composer, whole, tuple(rest), result)


@spreading.register("ConvTranspose")
def conv_of_spread(composer: Composer, node: Node) -> str | None:
    weight, shape, result = (
        composer.value(node.inputs[1]), composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    )  # fmt: skip
    rank, groups = len(shape) - 2, int(node.attribute("group", 1))
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    if weight is None or rank != 2 or not 1 < math.prod(strides) <= MOST_ZEROS:
        return None
    before, _ = transposed_crops(dict(node.attributes), shape[2:], weight.shape[2:])
    reach = [(k - 1) * d for k, d in zip(weight.shape[2:], dilations, strict=True)]
    wide = tuple(n * s for n, s in zip(shape[2:], strides, strict=True))
    first = [r - crop for r, crop in zip(reach, before, strict=True)]
    last = [n + r - f - w for n, r, f, w in zip(result[2:], reach, first, wide, strict=True)]
    if min(*first, *last) < 0:
        return None
    repeated = composer.kernel(
        "resize", (node.inputs[0],), (*shape[:2], *wide),
        shape=shape_text(shape), sizes=shape_text((*shape[:2], *wide)),
    )  # fmt: skip
    mask = np.zeros((*shape[:2], *wide), np.float32)
    mask[:, :, :: strides[0], :: strides[1]] = 1
    parts = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
    turned = np.flip(parts.reshape(-1, *parts.shape[2:]), axis=(2, 3))
    filters = composer.constant(np.ascontiguousarray(turned))
    return composer.apply(
        "Conv", composer.pointwise("Mul", repeated, composer.constant(mask)), filters,
        *node.inputs[2:3], shape=result, kernel_shape=weight.shape[2:], group=groups,
        dilations=dilations, pads=(*first, *last),
    )  # fmt: skip


def _spread(
    weight: NDArray[Any], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[NDArray[Any], tuple[int, ...]]:
    """The filter with zeros between its taps along axes that stride, and the dilations left."""
    steps = [d if s > 1 else 1 for s, d in zip(strides, dilations, strict=True)]
    extents = [(n - 1) * step + 1 for n, step in zip(weight.shape[2:], steps, strict=True)]
    whole = np.zeros((*weight.shape[:2], *extents), weight.dtype)
    whole[(slice(None), slice(None), *(slice(None, None, step) for step in steps))] = weight
    return whole, tuple(d // step for d, step in zip(dilations, steps, strict=True))


def _filters(weight: NDArray[Any], groups: int, strides: tuple[int, ...]) -> NDArray[Any]:
    """The filter of each remainder, flipped, as Conv takes them: (channels out of each group,
    remainders), channels in of one group, taps."""
    rank = weight.ndim - 2
    taps = [-(-size // s) for size, s in zip(weight.shape[2:], strides, strict=True)]
    room = [(0, t * s - k) for t, s, k in zip(taps, strides, weight.shape[2:], strict=True)]
    whole = np.pad(weight, [(0, 0), (0, 0), *room])
    cut = [n for tap, s in zip(taps, strides, strict=True) for n in (tap, s)]
    parts = whole.reshape(groups, -1, weight.shape[1], *cut)
    steps, phases = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    ordered = parts.transpose(0, 2, *phases, 1, *steps)
    flat = ordered.reshape(-1, parts.shape[1], *taps)
    return np.ascontiguousarray(np.flip(flat, axis=tuple(range(2, 2 + rank))))


def _interleaved(composer: Composer, source: str, strides: tuple[int, ...]) -> str:
    """(n, c s s, h, w) -> (n, c, h s, w s)"""
    n, channels, *extents = composer.dims(source)
    rank, inner = len(strides), channels // math.prod(strides)
    blocks = composer.view(source, (n, inner, *strides, *extents))
    order = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
    moved = composer.transpose(blocks, (0, 1, *order))
    whole = tuple(extent * s for extent, s in zip(extents, strides, strict=True))
    return composer.view(moved, (n, inner, *whole))


def _cropped(
    composer: Composer, source: str, first: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """`shape` pixels from `first` on."""
    if composer.dims(source) == shape:
        return source
    starts = np.array((0, 0, *first))
    return composer.slice(source, starts, starts + shape)
