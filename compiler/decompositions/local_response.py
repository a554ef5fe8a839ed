"""LRN (local response normalisation) -> pooling over channels between elementwise operators.

    y = x / (bias + alpha / size * sum of squares over `size` channels around)^beta

Seen as an image of C rows and H W columns, the mean of squares is average pooling with a window of
`size` rows, padding counted; the power is taken through a logarithm (its base is positive). A
window holds no more rows than reach all channels from each, and the mean's factor goes to alpha.
"""

import math

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("LRN")
def local_response(composer: Composer, node: Node) -> str | None:
    x, dims = node.inputs[0], composer.dims(node.inputs[0])
    if len(dims) < 3:
        return None
    stated = int(node.attribute("size"))
    size = min(stated, 2 * dims[1] - 1)
    image = (dims[0], 1, dims[1], math.prod(dims[2:]))
    rows = composer.view(composer.pointwise("Mul", x, x), image)
    sides = ((size - 1) // 2, 0, size // 2, 0)
    means = composer.newest(
        "AveragePool", rows, shape=image, kernel_shape=(size, 1), pads=sides, count_include_pad=1
    )
    alpha = composer.number(node.attribute("alpha", 1e-4) * (size / stated))
    scaled = composer.pointwise("Mul", composer.view(means, dims), alpha)
    total = composer.pointwise("Add", scaled, composer.number(node.attribute("bias", 1.0)))
    exponent = composer.number(-node.attribute("beta", 0.75))
    power = composer.pointwise("Mul", composer.pointwise("Log", total), exponent)
    return composer.pointwise("Mul", x, composer.pointwise("Exp", power))
