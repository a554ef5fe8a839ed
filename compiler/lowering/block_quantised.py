"""BlockQuantisedMatMul -> `block_quantised_matmul`: leading axes fold into rows."""

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics.block_quantised import OPERATOR, parameters
from tilesmith.compiler.rewriting.lower import Parameters, is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter


@rules.register(OPERATOR)
def lower_block_quantised(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_computable(info):
        return None
    stated: Parameters = parameters(node, math.prod(info.dims[:-1]))
    stated["scales"] = rewriter.info(node.inputs[2]).dtype
    names, kernel = ("", "q", "scale", "zero"), "block_quantised_matmul"
    return [make_kernel(rewriter, node, kernel, node.inputs, names=names, **stated)]
