"""ConvTranspose of one to three spatial axes -> Conv; where it strides, its channels interleaved.

Output pixel i s + k - p sums x[i] w[k]. All pixels of one remainder r modulo the stride s read the
same taps k = r, r + s, ..., so each remainder is a convolution of x with its own, shorter filter;
they are computed as s s times as many channels and interleaved, as DepthToSpace does:

    y[q s + r - p] = sum_j x[q - j] w[j s + r]          j s + r < kernel

No multiplication by the zeros that a stride puts between pixels, nor by zeros that fill filters up:
where an image has infinities, zeros would make NaN of them. So remainders that have fewer taps than
others are a convolution of their own, as are those of a dilated filter that strides. Weights have
to be constant; the rest stays on the host.

Where moving elements costs more than multiplying zeros (`spreading`), zeros are put between the
pixels after all: the image is repeated to the nearest, times a mask, and convolved with the filter
turned round. Up to `MOST_ZEROS` times as many products are made so. The mask is as large as the
image, so that it is laid out as the image is: no number has to be spread over its channels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.host.operators.windows import transposed_crops
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions, spreading
from tilesmith.search_space.workloads.workload import shape_text

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
    axes = [
        _Axis(n, count, stride, dilation, *divmod(crop, stride))
        for n, count, stride, dilation, crop in zip(
            shape[2:], weight.shape[2:], strides, dilations, before, strict=True
        )
    ]
    wide = tuple(
        -(-(axis.crop + n) // axis.stride) for axis, n in zip(axes, result[2:], strict=True)
    )
    blocks = [axis.blocks() for axis in axes]
    for axis, n, own in zip(axes, wide, blocks, strict=True):
        if any(axis.left(block, n) < 1 for block in own if block.taps):
            return None

    def part(chosen: tuple[_Block, ...]) -> str:
        """The remainders of one block along each axis: (n, channels, remainders, pixels)."""
        phases = tuple(len(block.phases) for block in chosen)
        whole = (shape[0], result[1], *phases, *wide)
        if not all(block.taps for block in chosen):  # no pixel of the image reaches them
            every = np.zeros(result[1], np.float32) if not bias else shifts
            spread = every.reshape(1, -1, *[1] * (2 * rank))
            return composer.constant(np.broadcast_to(spread, whole).astype(np.float32))
        sides = [axis.pads(block, n) for axis, block, n in zip(axes, chosen, wide, strict=True)]
        sources = [_cut(composer, node.inputs[0], sides)]
        sources.append(composer.constant(_filters(weight, groups, axes, chosen)))
        if bias:
            sources.append(composer.constant(np.repeat(shifts, math.prod(phases))))
        convolved = composer.apply(
            "Conv", *sources, shape=(shape[0], result[1] * math.prod(phases), *wide),
            kernel_shape=tuple(block.taps for block in chosen), group=groups,
            dilations=tuple(block.step for block in chosen),
            pads=tuple(max(0, side) for pair in zip(*sides, strict=True) for side in pair),
        )  # fmt: skip
        return composer.view(convolved, whole) if math.prod(strides) > 1 else convolved

    def joined(chosen: tuple[_Block, ...]) -> str:
        """All remainders of the axes that no block is chosen of yet."""
        if len(chosen) == rank:
            return part(chosen)
        parts = [joined((*chosen, block)) for block in blocks[len(chosen)]]
        return parts[0] if len(parts) == 1 else composer.concat(2 + len(chosen), *parts)

    whole = joined(())
    if math.prod(strides) > 1:
        whole = _interleaved(composer, whole, rank)
    return _cropped(composer, whole, tuple(axis.crop for axis in axes), result)


@dataclass(frozen=True)
class _Block:
    """Neighbouring remainders whose pixels read as many taps, as far apart.

    Attributes:
        phases: the remainders.
        first: how far before it the first pixel is that one reads; step: from one to the next.
        taps: pixels it reads; 0 for none.
    """

    phases: tuple[int, ...]
    first: int
    step: int
    taps: int


@dataclass(frozen=True)
class _Axis:
    """One axis: its extent, the filter's, and how many strides and pixels are cropped first."""

    extent: int
    count: int
    stride: int
    dilation: int
    skipped: int
    crop: int

    def blocks(self) -> list[_Block]:
        """Tap k reaches pixel k d - r of the remainder r in steps of the stride."""
        step = self.dilation // math.gcd(self.stride, self.dilation)
        blocks: list[_Block] = []
        for phase in range(self.stride):
            taps = self.taps(phase)
            first = taps[0] * self.dilation // self.stride if taps else 0
            block = _Block((phase,), first, step if len(taps) > 1 else 1, len(taps))
            if blocks and replace(blocks[-1], phases=(phase,)) == block:
                block = replace(block, phases=(*blocks[-1].phases, phase))
                blocks.pop()
            blocks.append(block)
        return blocks

    def taps(self, phase: int) -> list[int]:
        """The taps that pixels of a remainder read."""
        return [k for k in range(self.count) if k * self.dilation % self.stride == phase]

    def pads(self, block: _Block, wide: int) -> tuple[int, int]:
        """Zeros before and behind the image for `wide` results; below 0, pixels that none reads."""
        before = (block.taps - 1) * block.step + block.first - self.skipped
        return before, wide - self.extent + self.skipped - block.first

    def left(self, block: _Block, wide: int) -> int:
        """Pixels of the image that are read, about."""
        return self.extent + sum(min(0, side) for side in self.pads(block, wide))


def _cut(composer: Composer, source: str, sides: list[tuple[int, int]]) -> str:
    """An image without the pixels that sides below 0 leave out."""
    if min(min(pair) for pair in sides) >= 0:
        return source
    shape = composer.dims(source)
    starts = np.array((0, 0, *(max(0, -first) for first, _ in sides)))
    ends = np.array(shape) - (0, 0, *(max(0, -last) for _, last in sides))
    return composer.slice(source, starts, ends)


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


def _filters(
    weight: NDArray[Any], groups: int, axes: Sequence[_Axis], blocks: Sequence[_Block]
) -> NDArray[Any]:
    """The filter of each remainder of blocks, flipped, as Conv takes them: (channels out of each
    group, remainders), channels in of one group, taps."""
    rank = len(axes)
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    for at, (axis, block) in enumerate(zip(axes, blocks, strict=True)):
        picked = np.array([axis.taps(phase)[::-1] for phase in block.phases])
        parts = np.take(parts, picked, axis=3 + 2 * at)
    phases, steps = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    ordered = parts.transpose(0, 2, *phases, 1, *steps)
    taps = ordered.shape[-rank:]
    return np.ascontiguousarray(ordered.reshape(-1, parts.shape[1], *taps))


def _interleaved(composer: Composer, source: str, rank: int) -> str:
    """(n, c, s, s, h, w) -> (n, c, h s, w s)"""
    n, channels, *rest = composer.dims(source)
    order = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
    moved = composer.transpose(source, (0, 1, *order))
    whole = tuple(s * extent for s, extent in zip(rest[:rank], rest[rank:], strict=True))
    return composer.view(moved, (n, channels, *whole))


def _cropped(
    composer: Composer, source: str, first: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """`shape` pixels from `first` on."""
    if composer.dims(source) == shape:
        return source
    starts = np.array((0, 0, *first))
    return composer.slice(source, starts, starts + shape)
