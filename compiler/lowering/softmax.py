"""Softmax and LogSoftmax -> `softmax`, the axes before and after the normalised one merged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node
from tilesmith.compiler.rewriting.lower import is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.workload import ParameterValue, shape_text


@rules.register("Softmax")
def lower_softmax(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _lower(rewriter, node, 0)


@rules.register("LogSoftmax")
def lower_log_softmax(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _lower(rewriter, node, 1)


def _lower(rewriter: Rewriter, node: Node, log: int) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_computable(info) or not info.dims:
        return None
    assert node.domain == INTERNAL_DOMAIN or rewriter.graph.opset >= 13, "canonicalised before"
    axis = int(node.attribute("axis", -1)) % len(info.dims)
    before, after = math.prod(info.dims[:axis]), math.prod(info.dims[axis + 1 :])
    shape = (before, info.dims[axis], *((after,) if after > 1 else ()))
    parameters: dict[str, ParameterValue] = {"shape": shape_text(shape), "log": log}
    if after > 1:
        parameters["axis"] = 1
    return [make_kernel(rewriter, "softmax", parameters, (node.inputs[0],), node)]
