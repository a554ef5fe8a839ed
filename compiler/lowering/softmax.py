"""Softmax and LogSoftmax -> `softmax`, the axes before and after the normalised one merged."""

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node
from tilesmith.compiler.rewriting.lower import Parameters, is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter


@rules.register("Softmax")
@rules.register("LogSoftmax")
def lower_softmax(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info, log = rewriter.info(node.inputs[0]), int(node.operator == "LogSoftmax")
    if not is_computable(info) or not info.dims:
        return None
    assert node.domain == INTERNAL_DOMAIN or rewriter.graph.opset >= 13, "canonicalised before"
    axis = int(node.attribute("axis", -1)) % len(info.dims)
    before, after = math.prod(info.dims[:axis]), math.prod(info.dims[axis + 1 :])
    shape = (before, info.dims[axis], *((after,) if after > 1 else ()))
    placed: Parameters = {"axis": 1} if after > 1 else {}
    return [make_kernel(rewriter, node, "softmax", (info.name,), shape=shape, log=log, **placed)]
