"""MatMul whose leading axes broadcast -> of operands that have them alike.

Where one operand is a single matrix nothing needs to be done: lowering merges the other's leading
axes into rows or a batch.
"""

from __future__ import annotations

import math

import numpy as np

from tilesmith.compiler.decomposition import Composer, decompositions
from tilesmith.compiler.decompositions.repetition import broadcast
from tilesmith.compiler.graph import Node


@decompositions.register("MatMul")
def matmul(composer: Composer, node: Node) -> str | None:
    a, b = (composer.dims(name) for name in node.inputs)
    lead_a, lead_b = a[:-2], b[:-2]
    if lead_a == lead_b or math.prod(lead_b) == 1 or len(a) < 2:
        return None
    lead = np.broadcast_shapes(lead_a, lead_b)
    alike = [
        broadcast(composer, name, (*lead, *shape[-2:]))
        for name, shape in zip(node.inputs, (a, b), strict=True)
    ]
    return composer.apply("MatMul", *alike, shape=composer.dims(node.writes[0]))
