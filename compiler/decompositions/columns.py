"""Col2Im and MaxUnpool: what was taken out of images is put back.

Col2Im adds columns up where they were taken from: a transposed convolution whose filter is a one
for each place in a block, which costs as many multiplications a number as a block has places, and
pays up to `_LARGEST_BLOCK`. MaxUnpool scatters into zeros. Semantics of Col2Im 18, MaxUnpool 22.
"""

from __future__ import annotations

import math

import numpy as np

from tilesmith.compiler.decomposition import Composer, decompositions
from tilesmith.compiler.graph import Node
from tilesmith.compiler.onnx.access import spatial

_LARGEST_BLOCK = 25


@decompositions.register("Col2Im")
def col2im(composer: Composer, node: Node) -> str | None:
    known = [composer.value(name) for name in node.inputs[1:3]]
    if known[0] is None or known[1] is None:
        return None
    image, block = (tuple(int(n) for n in array) for array in known if array is not None)
    n, columns, length = composer.dims(node.inputs[0])
    rank, places = len(image), math.prod(block)
    if not 1 <= rank <= 3 or places > _LARGEST_BLOCK or columns % places:
        return None
    strides, dilations = (spatial(node, name, rank) for name in ("strides", "dilations"))
    pads = spatial(node, "pads", 2 * rank, 0)
    reach = [(size - 1) * d + 1 for size, d in zip(block, dilations, strict=True)]
    room = [image[a] + pads[a] + pads[rank + a] - reach[a] for a in range(rank)]
    counts = tuple(extent // s + 1 for extent, s in zip(room, strides, strict=True))
    if min(room) < 0 or math.prod(counts) != length:
        return None
    rest = tuple(extent % s for extent, s in zip(room, strides, strict=True))
    channels = columns // places
    filters = np.tile(np.eye(places, dtype=np.float32), (channels, 1))
    weight = composer.constant(filters.reshape(columns, 1, *block))
    source = composer.view(node.inputs[0], (n, columns, *counts))
    return composer.apply(
        "ConvTranspose", source, weight, shape=(n, channels, *image), group=channels,
        kernel_shape=block, strides=strides, dilations=dilations, pads=pads, output_padding=rest,
    )  # fmt: skip


@decompositions.register("MaxUnpool")
def max_unpool(composer: Composer, node: Node) -> str | None:
    source, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    kernel = tuple(node.attribute("kernel_shape"))
    rank = len(kernel)
    if len(source) != rank + 2 or composer.dims(node.inputs[1]) != source:
        return None
    strides, pads = spatial(node, "strides", rank), spatial(node, "pads", 2 * rank, 0)
    extents = tuple(
        (source[2 + a] - 1) * strides[a] + kernel[a] - pads[a] - pads[rank + a] for a in range(rank)
    )
    whole = (*source[:2], *extents)
    behind = tuple(after - before for before, after in zip(whole, result, strict=True))
    if min(extents) < 1 or min(behind) < 0 or composer.opset < 11:
        return None
    count = math.prod(source)
    zeros = composer.constant(np.zeros(math.prod(whole), np.float32))
    indices, values = (composer.view(name, (count,)) for name in node.inputs[1::-1])
    scattered = composer.apply(
        "ScatterElements", zeros, indices, values, shape=(math.prod(whole),), axis=0
    )
    return composer.pad(composer.view(scattered, whole), (0,) * len(whole), behind)
