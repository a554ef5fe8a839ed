"""GridSample and AffineGrid: images sampled at the places of a grid, and grids of an affine map.

Semantics are those of the newest opsets (GridSample 22, AffineGrid 20); before opset 20 the modes
of GridSample had the names of two axes.
"""

import math

import numpy as np

from tilesmith.compiler.decompositions.parts.taps import (
    LARGEST,
    OFFSETS,
    PixelAxis,
    is_float32,
    sampled,
    together,
)
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.host.operators.grids import centres
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("GridSample")
def grid_sample(composer: Composer, node: Node) -> str | None:
    n, channels, *extents = composer.dims(node.inputs[0])
    result = composer.dims(node.writes[0])
    mode = str(node.attribute("mode", "linear"))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    padding = str(node.attribute("padding_mode", "zeros"))
    corners = bool(node.attribute("align_corners", 0))
    count, samples = len(extents), math.prod(result[2:])
    known = mode in OFFSETS and padding in ("zeros", "border", "reflection")
    reads = n * samples * len(OFFSETS.get(mode, ())) ** count
    if count not in (2, 3) or not known or max(math.prod(extents), reads) >= LARGEST:
        return None
    if not is_float32(composer, node.inputs[:2]):
        return None
    if composer.dims(node.inputs[1]) != (n, *result[2:], count):
        return None
    grid = composer.view(node.inputs[1], (n, samples, count))
    coordinates = composer.parts_of(composer.transpose(grid, (2, 0, 1)), 0)
    axes = [PixelAxis(composer, extent, mode) for extent in extents]
    places = [
        _pixels(axis, composer.view(coordinate, (n, 1, samples)), corners)
        for axis, coordinate in zip(axes, reversed(coordinates), strict=True)
    ]
    taps = [axis.taps(p, padding, corners) for axis, p in zip(axes, places, strict=True)]
    whole = together(composer, taps, extents)
    shape = (n, channels, extents[0], math.prod(extents[1:]))
    sampled_pixels = sampled(composer, composer.view(node.inputs[0], shape), whole, (1, samples))
    return composer.view(sampled_pixels, result)


def _pixels(axis: PixelAxis, place: str, corners: bool) -> str:
    """From -1 .. 1 to pixels: the ends are the centres of the last pixels, or their edges."""
    shifted = axis.of("Add", place, 1.0)
    if corners:
        pixels = axis.of("Mul", axis.of("Mul", shifted, 0.5), axis.extent - 1.0)
    else:
        pixels = axis.of(
            "Mul", axis.of("Sub", axis.of("Mul", shifted, float(axis.extent)), 1.0), 0.5
        )
    return axis.composer.pointwise("Round", pixels) if axis.mode == "nearest" else pixels


@decompositions.register("AffineGrid")
def affine_grid(composer: Composer, node: Node) -> str | None:
    """grid[n, p] = theta[n] (place p, 1): a product with constant places."""
    size = composer.value(node.inputs[1])
    if size is None or not is_float32(composer, node.inputs[:1]):
        return None
    extents, count = [int(extent) for extent in size[2:]], len(size) - 2
    if composer.dims(node.inputs[0])[1:] != (count, count + 1):
        return None
    axes = [centres(extent, bool(node.attribute("align_corners", 0))) for extent in extents]
    homogeneous = [*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(extents)]
    known = np.stack(homogeneous).reshape(count + 1, -1)
    grid = composer.matmul(node.inputs[0], composer.constant(known))
    turned = composer.transpose(grid, (0, 2, 1))
    return composer.view(turned, composer.dims(node.writes[0]))
