"""Col2Im and MaxUnpool: what was taken out of images is put back.

Col2Im over one or two axes is the template `fold`; MaxUnpool scatters into zeros. Semantics of
Col2Im 18, MaxUnpool 22.
"""

import math

import numpy as np

from tilesmith.compiler.graph.access import spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.lowering.convolution import pad_text, pair_text
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("Col2Im")
def col2im(composer: Composer, node: Node) -> str | None:
    known = [composer.value(name) for name in node.inputs[1:3]]
    if known[0] is None or known[1] is None:
        return None
    image, block = (tuple(int(n) for n in array) for array in known if array is not None)
    rank = len(image)
    if rank not in (1, 2):
        return None
    strides, dilations = (spatial(node, name, rank) for name in ("strides", "dilations"))
    pads = spatial(node, "pads", 2 * rank, 0)
    sides = tuple((pads[axis], pads[rank + axis]) for axis in range(rank))
    if rank == 1:
        image, block, strides, dilations = ((1, *n) for n in (image, block, strides, dilations))
        sides = ((0, 0), *sides)
    n, columns, length = composer.dims(node.inputs[0])
    if min(*block, *strides) < 1:
        return None
    channels = columns // math.prod(block)
    counts = [
        (extent + sum(side) - (size - 1) * step - 1) // stride + 1
        for extent, side, size, step, stride in zip(
            image, sides, block, dilations, strides, strict=True
        )
    ]
    cut = (n, channels, *block, *counts)
    if min(counts) < 1 or math.prod(cut) != n * columns * length:
        return None
    summed = composer.kernel(
        "fold", (composer.view(node.inputs[0], cut),), (n, channels, *image), n=n, c=channels,
        h=image[0], w=image[1], kh=block[0], kw=block[1], stride=pair_text(strides),
        pad=pad_text(sides), dilation=pair_text(dilations),
    )  # fmt: skip
    return composer.view(summed, composer.dims(node.writes[0]))


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
