"""RoiAlign and MaxRoiPool on the host: regions whose number, or whose samples, a run tells.

RoiAlign's loops run as native code, over images whose channels are innermost: a tap is then one run
of memory for all of them. `onnx.reference` needs seconds, and does not know MaxRoiPool.
"""

from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints, Singles, compiled
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator
from tilesmith.search_space.support.errors import JobError

_MOST_SAMPLES = 4096
"""Samples along an axis of a bin; regions that ask for more are refused, for their sum may take
for ever."""


class Pooling(NamedTuple):
    """How regions are cut into bins.

    Attributes:
        height, width, channels: of the images.
        rows, columns: bins of a region.
        largest: whether a bin is its largest tap, else the mean of its samples.
        images: the image of each region.
        starts, bins: of each region, row and column: place of the first bin, extent of a bin.
        samples: the same: samples of a bin.
    """

    height: int
    width: int
    channels: int
    rows: int
    columns: int
    largest: int
    images: Ints
    starts: Floats
    bins: Floats
    samples: Ints


@host_operator("RoiAlign")
def roi_align(call: OperatorCall) -> Results:
    """y[r, c, bin] = mean, or maximum, of samples between pixels; opsets 10 to 22.

    Before opset 16 regions are not shifted by half a pixel.
    """
    x, regions, images = call.inputs
    if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 4 or (
        images.shape != regions.shape[:1]
    ):  # fmt: skip
        raise JobError(
            f"data of shape {x.shape}, regions of shape {regions.shape} and image numbers of shape "
            f"{images.shape} do not go together"
        )
    if fault := index_fault(images, x.shape[:1]):
        raise JobError(f"it {fault}")
    attributes = call.attributes
    rows, columns = (int(attributes.get(f"output_{name}", 1)) for name in ("height", "width"))
    largest = int(attributes.get("mode", "avg") == "max")
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1), dtype=np.float32).reshape(-1)
    numbers = np.where(images < 0, images + x.shape[0], images).astype(np.int64)
    places = _places(call, regions.astype(np.float32), np.array([rows, columns], np.float32))
    _, channels, height, width = x.shape
    pooling = Pooling(height, width, channels, rows, columns, largest, numbers, *places)
    y = np.zeros((len(regions), rows, columns, x.shape[1]), np.float32)
    if y.size and last.size:
        align(len(regions), last, pooling, y.reshape(-1), np.empty(4, np.int64), np.empty(4))
    return (np.ascontiguousarray(y.transpose(0, 3, 1, 2)).astype(x.dtype),)


def _places(call: OperatorCall, regions: Array, bins: Array) -> tuple[Array, Array, Array]:
    """Starts, extents of bins and samples of all regions, rows and columns in turns."""
    coordinates = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    coordinates = call.attributes.get("coordinate_transformation_mode", coordinates)
    shift = np.float32(0.5 if coordinates == "half_pixel" else 0)
    ends = regions * np.float32(call.attributes.get("spatial_scale", 1.0)) - shift
    starts, sizes = ends[:, 1::-1], ends[:, :1:-1] - ends[:, 1::-1]
    if not shift:
        sizes = np.maximum(sizes, 1)
    extents = sizes / bins
    count = int(call.attributes.get("sampling_ratio", 0))
    samples = np.full(extents.shape, count) if count > 0 else np.ceil(extents)
    if not np.all(samples <= _MOST_SAMPLES):
        raise JobError(
            f"a region has bins of {samples.max():.6g} samples along an axis; at most "
            f"{_MOST_SAMPLES} are taken: look at the regions, or set sampling_ratio"
        )
    both = (np.ascontiguousarray(part, np.float64).reshape(-1) for part in (starts, extents))
    return (*both, np.ascontiguousarray(samples, np.int64).reshape(-1))  # type: ignore[return-value]


@compiled
def align(count: int, x: Singles, pooling: Pooling, y: Singles, at: Ints, share: Floats) -> None:
    """All bins of all regions; `at` and `share` are room for the taps of a sample."""
    place = 0
    for region in range(count):
        for row in range(pooling.rows):
            for column in range(pooling.columns):
                fill(x, pooling, region, row, column, y, place, at, share)
                place += pooling.channels


@compiled
def fill(
    x: Singles,
    pooling: Pooling,
    region: int,
    row: int,
    column: int,
    y: Singles,
    place: int,
    at: Ints,
    share: Floats,
) -> None:
    """One bin: its channels from `place` on."""
    high = pooling.samples[2 * region]
    wide = pooling.samples[2 * region + 1]
    for i in range(high):
        vertical = pooling.starts[2 * region] + pooling.bins[2 * region] * (row + (i + 0.5) / high)
        for j in range(wide):
            horizontal = pooling.starts[2 * region + 1] + pooling.bins[2 * region + 1] * (
                column + (j + 0.5) / wide
            )
            tap(pooling, region, vertical, horizontal, at, share)
            if pooling.largest == 1:
                take_largest(x, pooling.channels, y, place, at, share, int(i + j == 0))
            else:
                add(x, pooling.channels, y, place, at, share)
    if pooling.largest == 0 and high * wide > 1:
        factor = 1.0 / (high * wide)
        for channel in range(pooling.channels):
            y[place + channel] = y[place + channel] * factor


@compiled
def tap(
    pooling: Pooling, region: int, vertical: float, horizontal: float, at: Ints, share: Floats
) -> None:
    """Where the four pixels around a place are, and their weights: none far outside."""
    inside = vertical >= -1 and vertical <= pooling.height
    if not (inside and horizontal >= -1 and horizontal <= pooling.width):
        for corner in range(4):
            at[corner] = 0
            share[corner] = 0.0
        return
    vertical = min(max(vertical, 0.0), float(pooling.height - 1))
    horizontal = min(max(horizontal, 0.0), float(pooling.width - 1))
    top = int(vertical)
    left = int(horizontal)
    bottom = min(top + 1, pooling.height - 1)
    right = min(left + 1, pooling.width - 1)
    down = vertical - top
    across = horizontal - left
    base = pooling.images[region] * pooling.height
    at[0] = ((base + top) * pooling.width + left) * pooling.channels
    at[1] = ((base + top) * pooling.width + right) * pooling.channels
    at[2] = ((base + bottom) * pooling.width + left) * pooling.channels
    at[3] = ((base + bottom) * pooling.width + right) * pooling.channels
    share[0] = (1 - down) * (1 - across)
    share[1] = (1 - down) * across
    share[2] = down * (1 - across)
    share[3] = down * across


@compiled
def add(x: Singles, channels: int, y: Singles, place: int, at: Ints, share: Floats) -> None:
    """Add a sample to its bin."""
    one = at[0]
    two = at[1]
    three = at[2]
    four = at[3]
    a = share[0]
    b = share[1]
    c = share[2]
    d = share[3]
    for channel in range(channels):
        upper = x[one + channel] * a + x[two + channel] * b
        lower = x[three + channel] * c + x[four + channel] * d
        y[place + channel] += upper + lower


@compiled
def take_largest(
    x: Singles, channels: int, y: Singles, place: int, at: Ints, share: Floats, first: int
) -> None:
    """Keep the largest product of a pixel and its weight, or the first sample's."""
    for channel in range(channels):
        upper = max(x[at[0] + channel] * share[0], x[at[1] + channel] * share[1])
        lower = max(x[at[2] + channel] * share[2], x[at[3] + channel] * share[3])
        largest = max(upper, lower)
        if first == 0:
            largest = max(largest, y[place + channel])
        y[place + channel] = largest


@host_operator("MaxRoiPool")
def max_roi_pool(call: OperatorCall) -> Results:
    """y[r, c, bin] = the largest of the pixels in a bin, 0 where it has none; opsets 1 to 22.

    A region is (image, x1, y1, x2, y2), ends included, rounded to pixels of the scaled image; bins
    overlap where they are cut between pixels (Girshick, "Fast R-CNN", 2015).
    """
    x, regions = call.inputs
    rows, columns = (int(extent) for extent in call.attributes["pooled_shape"])
    scale = np.float32(call.attributes.get("spatial_scale", 1.0))
    if x.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 5:
        raise JobError(f"regions of shape {regions.shape} do not fit data of shape {x.shape}")
    images = regions[:, 0].astype(np.int64)
    if fault := index_fault(images, x.shape[:1]):
        raise JobError(f"it {fault}")
    scaled = regions[:, 1:].astype(np.float32) * scale
    ends = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int64)
    y = np.zeros((len(regions), x.shape[1], rows, columns), x.dtype)
    for region, (image, (left, top, right, bottom)) in enumerate(zip(images, ends, strict=True)):
        vertical = _bins(top, bottom, rows, x.shape[2])
        horizontal = _bins(left, right, columns, x.shape[3])
        for i, (first, last) in enumerate(vertical):
            for j, (start, stop) in enumerate(horizontal):
                if last > first and stop > start:
                    cells = x[image, :, first:last, start:stop]
                    y[region, :, i, j] = cells.max(axis=(1, 2))
    return (y,)


def _bins(first: int, last: int, count: int, extent: int) -> list[tuple[int, int]]:
    """The pixels of each bin along an axis, from the first up to the one behind the last."""
    size = np.float32(max(last - first + 1, 1)) / np.float32(count)
    starts = np.floor(np.arange(count, dtype=np.float32) * size).astype(np.int64) + first
    stops = np.ceil(np.arange(1, count + 1, dtype=np.float32) * size).astype(np.int64) + first
    bounds = (starts.clip(0, extent), stops.clip(0, extent))
    return list(zip(*(part.tolist() for part in bounds), strict=True))
