"""MatMul and Gemm -> `matmul`.

Leading axes of `a` fold into rows where `b` is one matrix; equal leading axes become the batch. A
transpose of the last two axes before an operand becomes `ta` or `tb`; weights are transposed here
instead, so that one task serves both spellings. Gemm's C becomes a bias or a residual.
"""

import math
from collections.abc import Sequence

import numpy as np

from tilesmith.compiler.graph.access import permutation
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.lower import Parameters, is_computable, make_kernel, rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.epilogue import EpilogueStep


@rules.register("MatMul")
def lower_matmul(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    a, ta = _untransposed(rewriter, node.inputs[0])
    b, tb = _untransposed(rewriter, node.inputs[1])
    one = math.prod(rewriter.info(b).dims[:-2] if rewriter.info(b).known else ()) == 1
    if ta and one and rewriter.info(a).known and math.prod(rewriter.info(a).dims[:-2]) > 1:
        a, ta = node.inputs[0], 0  # turned matrices follow each other as rows, unturned ones do not
    if not all(is_computable(rewriter.info(name)) for name in (a, b)):
        return None
    shape_a, shape_b = rewriter.info(a).dims, rewriter.info(b).dims
    shape_a = shape_a if len(shape_a) > 1 else (1, *shape_a)
    shape_b = shape_b if len(shape_b) > 1 else (*shape_b, 1)
    rows, depth = shape_a[-2:][::-1] if ta else shape_a[-2:]
    columns = shape_b[-2] if tb else shape_b[-1]
    lead_a, lead_b = shape_a[:-2], shape_b[:-2]
    parameters: Parameters = {"m": rows, "n": columns, "k": depth, "ta": ta, "tb": tb}
    if math.prod(lead_b) == 1 and not ta:
        parameters["m"] = math.prod(lead_a) * rows
    elif lead_a == lead_b:
        parameters["batch"] = math.prod(lead_a)
    elif math.prod(lead_a) != 1 or math.prod(lead_b) != 1:
        return None
    return [make_kernel(rewriter, node, "matmul", (a, b), names=("a", "b"), **parameters)]


def _untransposed(rewriter: Rewriter, name: str) -> tuple[str, int]:
    """(source, 1) where `name` is `source` with its last two axes swapped, else (name, 0)."""
    node = rewriter.producer(name, "Transpose")
    if node is None:
        return name, 0
    rank = len(rewriter.info(name).dims)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    order = permutation(node, rank)
    return (node.inputs[0], 1) if rank >= 2 and order == swapped else (name, 0)


@rules.register("Gemm")
def lower_gemm(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    a, b = node.inputs[:2]
    if not all(is_computable(rewriter.info(name)) for name in (a, b)):
        return None
    ta, tb = int(node.attribute("transA", 0)), int(node.attribute("transB", 0))
    weight = rewriter.constant(b)
    if tb and weight is not None:
        b, tb = rewriter.add_constant(b, weight.T, "float32"), 0
    rows, depth = rewriter.info(a).dims[::-1] if ta else rewriter.info(a).dims
    columns = rewriter.info(b).dims[0 if tb else 1]
    epilogue: list[tuple[EpilogueStep, str]] = []
    if node.attribute("alpha", 1.0) != 1.0:
        scale = EpilogueStep("multiply_constant", (float(node.attribute("alpha")),))
        epilogue.append((scale, ""))
    if node.input(2):
        addend = _addend(rewriter, node, (rows, columns))
        if addend is None:
            return None
        epilogue.append(addend)
    product = make_kernel(
        rewriter, node, "matmul", (a, b), names=("a", "b"), epilogue=epilogue,
        m=rows, n=columns, k=depth, ta=ta, tb=tb,
    )  # fmt: skip
    return [product]


def _addend(
    rewriter: Rewriter, node: Node, shape: tuple[int, int]
) -> tuple[EpilogueStep, str] | None:
    """beta C as an epilogue step and its operand."""
    name, beta = node.inputs[2], float(node.attribute("beta", 1.0))
    info, value = rewriter.info(name), rewriter.constant(name)
    if value is not None:
        per_row = value.size > shape[1] or (value.size > 1 and value.shape[-1] != shape[1])
        target = shape if per_row else (shape[1],)
        wide = np.broadcast_to((value * beta).astype(np.float32), target if per_row else shape)
        name = rewriter.add_constant(name, np.array(wide if per_row else wide[0]), "float32")
        return EpilogueStep("residual" if per_row else "bias"), name
    if beta != 1.0 or not is_computable(info):
        return None
    if info.elements == shape[1] and info.dims[-1] == shape[1]:
        return EpilogueStep("bias"), name
    return (EpilogueStep("residual"), name) if info.shape == shape else None
