"""DeformConv -> the kernel `sample`, and a product with the filter.

    column[n, c, k, p] = mask[n, g, k, p] * x[n, c, place of p + tap k + offset[n, g, k, p]]
    y[n, o, p]         = sum over c and k of weight[o, c, k] column[n, c, k, p] + bias[o]

Places are between pixels, which are weighted by their distance; what is outside counts as zero.
Channels of an offset group are images of their own. Semantics of DeformConv 22.
"""

import math

import numpy as np

from tilesmith.compiler.decompositions.parts.taps import (
    LARGEST,
    PixelAxis,
    Taps,
    is_float32,
    sampled,
    together,
)
from tilesmith.compiler.graph.access import pads, spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("DeformConv")
def deform_conv(composer: Composer, node: Node) -> str | None:
    n, channels, *extents = composer.dims(node.inputs[0])
    weight = composer.dims(node.inputs[1])
    result = composer.dims(node.writes[0])
    if len(extents) != 2 or not is_float32(composer, node.reads):
        return None
    groups, offset_groups = (int(node.attribute(name, 1)) for name in ("group", "offset_group"))
    kernel, size = weight[2:], result[2:]
    taps, pixels, images = math.prod(kernel), math.prod(size), n * offset_groups
    if max(math.prod(extents), images * taps * pixels * 4) >= LARGEST:
        return None
    shapes = {1: (result[1], channels // groups, *kernel), 3: (result[1],)}
    shapes |= {2: (n, 2 * offset_groups * taps, *size), 4: (n, offset_groups * taps, *size)}
    if any(
        composer.dims(name) != shapes.get(i + 1) for i, name in enumerate(node.inputs[1:]) if name
    ):
        return None
    offsets = composer.view(node.inputs[2], (images * taps, 2, pixels))
    both = []
    moves = composer.parts_of(composer.transpose(offsets, (1, 0, 2)), 0)
    for axis, (extent, move) in enumerate(zip(extents, moves, strict=True)):
        start = _places(node, tuple(extents), kernel, size, axis)
        shape = (images, 1, taps * pixels)
        known = composer.constant(start.reshape(1, 1, -1))
        place = composer.pointwise("Add", composer.view(move, shape), known)
        both.append(PixelAxis(composer, extent, "linear").taps(place, "zeros"))
    samples = together(composer, both, extents)
    if mask := node.input(4):
        factor = composer.view(mask, (images, 1, 1, taps * pixels))
        samples = Taps(samples.index, composer.pointwise("Mul", samples.weight, factor))
    split = composer.view(node.inputs[0], (images, channels // offset_groups, *extents))
    columns = sampled(composer, split, samples, (taps, pixels))
    inner, outer = channels // groups * taps, result[1] // groups
    lead = (groups,) if groups > 1 else ()
    product = composer.matmul(
        composer.view(node.inputs[1], (*lead, outer, inner)),
        composer.view(columns, (n, *lead, inner, pixels)),
    )
    found_pixels = composer.view(product, (n, result[1], pixels))
    if bias := node.input(3):
        column = composer.view(bias, (result[1], 1))
        found_pixels = composer.pointwise("Add", found_pixels, column)
    return composer.view(found_pixels, result)


def _places(
    node: Node,
    extents: tuple[int, ...],
    kernel: tuple[int, ...],
    size: tuple[int, ...],
    axis: int,
) -> np.ndarray:
    """Coordinates along an axis before they are moved: (kh, kw, oh, ow)."""
    before = pads(node, extents, kernel)[axis][0]
    stride, dilation = (spatial(node, name, 2)[axis] for name in ("strides", "dilations"))
    taps = np.arange(kernel[axis]).reshape((-1, 1) if axis == 0 else (-1,))[..., None, None]
    pixels = np.arange(size[axis]).reshape((-1, 1) if axis == 0 else (-1,))
    places = pixels * stride - before + taps * dilation
    return np.broadcast_to(places.astype(np.float32), (*kernel, *size))
