"""Places between pixels -> indices and weights of pixels, which the kernel `sample` reads.

    y[r, c, p] = sum over t of weight[r, t, p] * x[image[r], c, index[r, t, p]]

Places between pixels are worked out axis by axis, elementwise; the taps of a sample are all
combinations of the taps along its axes. An index counts pixels row by row.

    along an axis   tap t of place q: pixel floor(q) + d[t], weighted by its distance from q
    together        index = index_y * width + index_x           weight = weight_y * weight_x

GridSample, RoiAlign and DeformConv have this in common (`grids`, `regions`, `deformation`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.rewriting.decomposition import Composer

OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""The taps along an axis, from the pixel at or before a place."""

_CUBIC = -0.75
"""Keys' parameter, as in PyTorch."""

LARGEST = 2**31
"""Pixels of an image, and indices, are counted in 32 bits."""


@dataclass(frozen=True)
class Taps:
    """Tensors of an axis's taps, both of shape (regions, taps, ...)."""

    index: str
    weight: str


class PixelAxis:
    """Taps along one axis of `extent` pixels, around places of shape (regions, 1, ...)."""

    def __init__(self, composer: Composer, extent: int, mode: str) -> None:
        self.composer, self.extent, self.mode = composer, extent, mode

    def of(self, operator: str, source: str, number: float) -> str:
        return self.composer.pointwise(operator, source, self.composer.number(number))

    def clipped(self, source: str) -> str:
        """Within the axis."""
        return self.of("Min", self.of("Max", source, 0.0), self.extent - 1.0)

    def reflected(self, source: str, corners: bool) -> str:
        """Back and forth between the first and last pixels' centres, or their outer edges."""
        low = 0.0 if corners else -0.5
        length = self.extent - 1.0 if corners else float(self.extent)
        if not length:
            return self.clipped(source)
        shifted = self.of("Sub", source, low)
        periods = self.composer.pointwise("Floor", self.of("Div", shifted, 2 * length))
        within = self.composer.pointwise("Sub", shifted, self.of("Mul", periods, 2 * length))
        turned = self.composer.pointwise("Abs", self.of("Sub", within, length))
        return self.composer.pointwise("Sub", self.composer.number(low + length), turned)

    def inside(self, source: str, low: float, high: float) -> str:
        """Flags of what lies from `low` to `high`; not-a-number does not."""
        composer = self.composer
        after = composer.pointwise("Less", source, composer.number(low), dtype="bool")
        before = composer.pointwise("Less", composer.number(high), source, dtype="bool")
        outside = composer.pointwise("Or", after, before, dtype="bool")
        return composer.pointwise("Not", outside, dtype="bool")

    def taps(self, place: str, padding: str, corners: bool = False) -> Taps:
        """Pixels and weights around places, as a padding mode of GridSample has it."""
        composer = self.composer
        shape = composer.dims(place)
        offsets = np.array(OFFSETS[self.mode], np.float32)
        first = place if self.mode == "nearest" else composer.pointwise("Floor", place)
        column = composer.constant(offsets.reshape(-1, *[1] * (len(shape) - 2)))
        weight = self.weights(place, first, column)
        if padding == "zeros":
            pixels = composer.pointwise("Add", first, column)
            within = self.inside(pixels, 0.0, self.extent - 1.0)
            weight = composer.pointwise("Where", within, weight, composer.number(0.0))
        pixels = composer.pointwise("Add", first, column)
        if padding == "reflection":
            pixels = self.reflected(pixels, corners)
        return Taps(composer.cast(self.clipped(pixels), "int32"), weight)

    def weights(self, place: str, first: str, column: str) -> str:
        composer = self.composer
        if self.mode == "nearest":
            return composer.number(1.0)
        share = composer.pointwise("Sub", place, first)
        away = composer.pointwise("Abs", composer.pointwise("Sub", share, column))
        if self.mode == "linear":
            return composer.pointwise("Sub", composer.number(1.0), away)
        square = composer.pointwise("Mul", away, away)
        near = self.of("Sub", self.of("Mul", away, _CUBIC + 2), _CUBIC + 3)
        near = self.of("Add", composer.pointwise("Mul", near, square), 1.0)
        far = composer.pointwise("Mul", self.of("Sub", away, 5.0), away)
        far = composer.pointwise("Mul", self.of("Add", far, 8.0), away)
        far = self.of("Mul", self.of("Sub", far, 4.0), _CUBIC)
        is_near = composer.pointwise("Less", away, composer.number(1.0), dtype="bool")
        return composer.pointwise("Where", is_near, near, far)


def together(composer: Composer, taps: Sequence[Taps], extents: Sequence[int]) -> Taps:
    """All combinations of the taps of the axes, the last one's fastest; one tensor each, of shape
    (regions, taps, taps, ..., places)."""
    index, weight = "", ""
    for axis, (own, extent) in enumerate(zip(taps, extents, strict=True)):
        combined = []
        for name in (own.index, own.weight):
            dims = composer.dims(name)
            if len(dims) >= 2:  # weights of the nearest are one number
                others = (1,) * axis, (1,) * (len(taps) - axis - 1)
                name = composer.view(name, (dims[0], *others[0], dims[1], *others[1], *dims[2:]))
            combined.append(name)
        if not index:
            index, weight = combined
            continue
        size = composer.constant(np.array(extent, np.int32))
        index = composer.pointwise("Mul", index, size, dtype="int32")
        index = composer.pointwise("Add", index, combined[0], dtype="int32")
        weight = composer.pointwise("Mul", weight, combined[1])
    return Taps(index, weight)


def is_float32(composer: Composer, names: Sequence[str]) -> bool:
    return all(composer.dtype(name) == "float32" for name in names)


def sampled(
    composer: Composer,
    images: str,
    taps: Taps,
    size: tuple[int, int],
    *,
    chosen: str = "",
    kind: str = "sum",
) -> str:
    """The kernel; `size` are rows of samples and samples in a row, `chosen` images of regions."""
    n, channels, h, w = composer.dims(images)
    dims = composer.dims(taps.index)
    regions, samples = dims[0], math.prod(size)
    places = (regions, math.prod(dims) // (regions * samples), samples)
    weight = taps.weight
    if not composer.dims(weight):
        weight = composer.constant(np.ones(places, np.float32))
    sources = (composer.view(taps.index, places), composer.view(weight, places))
    return composer.kernel(
        "sample", (images, *((chosen,) if chosen else ()), *sources),
        (regions, channels, *size), kind=kind, n=n, c=channels, h=h, w=w,
        regions=regions if chosen else 0, taps=places[1], oh=size[0], ow=size[1],
    )  # fmt: skip
