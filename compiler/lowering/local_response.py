"""LRN (local response normalisation) -> pooling over channels between elementwise operators.

    y = x / (bias + alpha / size * sum of squares over `size` channels around)^beta

Seen as an image of C rows and H W columns, the mean of squares is average pooling with a window of
`size` rows, padding counted; the power is taken through a logarithm (its base is positive). A
window holds no more rows than reach all channels from each, and the mean's factor goes to alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilesmith.compiler.graph.graph import Node, view
from tilesmith.compiler.rewriting.lower import is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.workload import ParameterValue


@rules.register("LRN")
def lower_lrn(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_computable(info) or len(info.dims) < 3:
        return None
    batch, channels, pixels = info.dims[0], info.dims[1], math.prod(info.dims[2:])
    stated = int(node.attribute("size"))
    size = min(stated, 2 * channels - 1)
    image = (batch, 1, channels, pixels)
    parameters: dict[str, ParameterValue] = {
        "kind": "average", "n": batch, "c": 1, "h": channels, "w": pixels, "kh": size, "kw": 1,
        "pad": f"{(size - 1) // 2}x0x{size // 2}x0", "count_include_pad": 1,
    }  # fmt: skip
    names = ("squares", "rows", "means", "flat", "scaled", "sum", "log", "power", "factor")
    shapes = (info.dims, image, image, *[info.dims] * 6)
    squares, rows, means, flat, scaled, total, logarithm, power, factor = (
        rewriter.add_tensor(f"{info.name}.{name}", "float32", shape)
        for name, shape in zip(names, shapes, strict=True)
    )
    alpha, bias, exponent = (
        rewriter.add_constant(f"{info.name}.{name}", np.array(value, np.float32), "float32")
        for name, value in (
            ("alpha", node.attribute("alpha", 1e-4) * (size / stated)),
            ("bias", node.attribute("bias", 1.0)),
            ("beta", -node.attribute("beta", 0.75)),
        )
    )
    x, y = node.inputs[0], node.writes[0]
    return [
        Node("Mul", (x, x), (squares,), f"{node.name}.squares"),
        view(squares, rows),
        make_kernel(rewriter, "pool2d", parameters, (rows,), node, output=means),
        view(means, flat),
        Node("Mul", (flat, alpha), (scaled,), f"{node.name}.alpha"),
        Node("Add", (scaled, bias), (total,), f"{node.name}.bias"),
        Node("Log", (total,), (logarithm,), f"{node.name}.log"),
        Node("Mul", (logarithm, exponent), (power,), f"{node.name}.beta"),
        Node("Exp", (power,), (factor,), f"{node.name}.exp"),
        Node("Mul", (x, factor), (y,), node.name),
    ]
