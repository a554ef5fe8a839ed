"""MatMul whose leading axes broadcast -> of operands that have them alike; Gemm with an odd C.

Where one operand is a single matrix nothing needs to be done: lowering merges the other's leading
axes into rows or a batch.
"""

import math

import numpy as np

from tilesmith.compiler.decompositions.repetition import broadcast
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("MatMul")
def matmul(composer: Composer, node: Node) -> str | None:
    a, b = (composer.dims(name) for name in node.inputs)
    lead_a, lead_b = a[:-2], b[:-2]
    if lead_a == lead_b or math.prod(lead_b) == 1:
        return None
    if len(a) < 2:  # a row, which the result does without
        lead = composer.dims(node.writes[0])
        row = composer.view(node.inputs[0], (1, *a))
        return composer.view(composer.matmul(row, node.inputs[1]), lead)
    lead = np.broadcast_shapes(lead_a, lead_b)
    alike = [
        broadcast(composer, name, (*lead, *shape[-2:]))
        for name, shape in zip(node.inputs, (a, b), strict=True)
    ]
    return composer.matmul(*alike)


@decompositions.register("Gemm")
def gemm(composer: Composer, node: Node) -> str | None:
    """With a C of the run that is neither a bias nor of the result's shape, or times beta."""
    c, beta = node.input(2), float(node.attribute("beta", 1.0))
    if not c or composer.value(c) is not None:
        return None
    dims, result = composer.dims(c), composer.dims(node.writes[0])
    if beta == 1.0 and dims in (result, result[-1:], (1, result[-1])):
        return None
    stated = {name: node.attribute(name, 0) for name in ("transA", "transB")}
    stated["alpha"] = float(node.attribute("alpha", 1.0))
    product = composer.apply("Gemm", *node.inputs[:2], shape=result, **stated)
    addend = c if beta == 1.0 else composer.pointwise("Mul", c, composer.number(beta))
    return composer.pointwise("Add", product, addend)
