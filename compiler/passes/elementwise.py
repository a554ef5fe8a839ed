"""Elementwise operators: chains of them are one kernel, whose formula is composed here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.formulas.formula_groups import FormulaGroup
from tilesmith.compiler.formulas.pointwise_formulas import Formula, formula_of
from tilesmith.compiler.formulas.typed_formulas import DTYPES, IN_DOUBLE
from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo, kernel
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.scalar import Scalar
from tilesmith.search_space.operator_parts.flattening import flatten, flatten_rows
from tilesmith.search_space.operator_parts.formula import formula_text, parse_formula
from tilesmith.search_space.operator_parts.formula_types import NUMBER, settled, type_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LowerElementwise(Pass):
    """Elementwise operators become `elementwise` kernels, chains of them one kernel.

        t = Add(a, b); u = Exp(t); y = Mul(u, c)                                      before
        y = Kernel(elementwise expression=multiply(exp(add(x0,x1)),x2))(a, b, c)      after

    What one kernel alone would read is computed inside the next, as long as no operand is broadcast
    on the way, and no more operands or functions come together than the template takes. Axes are
    merged as far as the operands allow, so that equal work has one key whatever its shape.

    Contract: a lowered graph in, epilogues fused; tensors of known shape, of element types that
    kernels have (`typed_formulas.DTYPES`); values equal up to roundings.
    """

    name = "lower-elementwise"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        groups: dict[str, FormulaGroup] = {}
        for node in graph.nodes:
            if (group := _group(rewriter, node)) is not None:
                grown = group if is_elementwise(node) else _grown(rewriter, group, groups)
                groups[group.result.name] = grown
        for group in groups.values():
            _replace(rewriter, group)
        return rewriter.finish()


def _group(rewriter: Rewriter, node: Node) -> FormulaGroup | None:
    """The group of one node: an elementwise kernel, or an operator that becomes one."""
    if is_elementwise(node):
        formula, operands = formula_in(node.work), node.inputs
    elif node.kind == "host" and len(node.writes) == 1:
        computed = _computable(rewriter, node)
        if computed is None:
            return None
        formula, operands = computed
    else:
        return None
    reads = [rewriter.info(name) for name in operands]
    return FormulaGroup.of(node, rewriter.info(node.writes[0]), formula, reads)


def _computable(rewriter: Rewriter, node: Node) -> Formula | None:
    """The formula of a node whose operands kernels read, None of others."""
    shape = rewriter.info(node.writes[0])
    masked = _with_numeric_mask(rewriter, node)
    infos = [rewriter.info(name) for name in (*masked.reads, *masked.writes)]
    if not all(map(_is_computable, infos)):
        return None
    if node.operator not in IN_DOUBLE and any(info.dtype == "float64" for info in infos):
        return None
    formula = formula_of(rewriter, masked)
    if formula is None:
        return None
    shapes = [rewriter.info(name).dims for name in formula[1]]
    return formula if all(_broadcasts(own, shape.dims) for own in shapes) else None


def _is_computable(info: TensorInfo) -> bool:
    return info.known and info.dtype in DTYPES and info.elements > 0


def _with_numeric_mask(rewriter: Rewriter, node: Node) -> Node:
    """A Where whose condition is constant reads it as numbers, which is what formulas know."""
    mask = rewriter.constant(node.input(0)) if node.is_onnx("Where") else None
    if mask is None:
        return node
    name = rewriter.add_constant(node.inputs[0], mask.astype(np.float32), "float32")
    return replace(node, inputs=(name, *node.inputs[1:]))


def _grown(
    rewriter: Rewriter, group: FormulaGroup, groups: dict[str, FormulaGroup]
) -> FormulaGroup:
    """A group with the producers that only it reads, which are no groups of their own any more.

    What a producer left out, nothing it is computed in takes: only what the last node reads is
    tried, from the first on again after each that joined, which may have read the same tensors.
    """
    waiting = [info.name for info in group.reads]
    while True:
        for name in waiting:
            before = groups.get(name)
            if before is None or rewriter.only_consumer(name) is not group.node:
                continue
            if (joined := group.joined(before)) is not None:
                break
        else:
            return group
        group = joined
        waiting.remove(name)
        del groups[name]


def _replace(rewriter: Rewriter, group: FormulaGroup) -> None:
    if len(group.nodes) == 1 and is_elementwise(group.node):
        return
    workload = _workload(rewriter, group.formula(), tuple(group.uses), group.result)
    for node in group.nodes:
        if node is not group.node:
            rewriter.remove(node)
    merged = kernel(workload, group.uses, group.result.name, group.node.name)
    rewriter.replace(group.node, replace(merged, sources=group.sources))


def is_elementwise(node: Node) -> bool:
    """Whether it is a kernel of the elementwise template."""
    return node.workload is not None and node.workload.operator == "elementwise"


def formula_in(workload: Workload) -> Scalar:
    """What an elementwise workload computes."""
    return parse_formula(workload.text("expression"))


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Whether `shape` broadcasts to `full` without adding axes."""
    tail = full[len(full) - len(shape) :] if len(shape) <= len(full) else None
    return tail is not None and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _workload(
    rewriter: Rewriter, formula: Scalar, operands: Sequence[str], result: TensorInfo
) -> Workload:
    infos = [rewriter.info(name) for name in operands]
    types = (result.dtype, *(info.dtype for info in infos))
    return elementwise_workload(formula, [info.dims for info in infos], result.dims, types)


def elementwise_workload(
    formula: Scalar,
    operands: Sequence[Shape],
    shape: Shape,
    dtypes: Sequence[str],
    *,
    rows: bool = False,
) -> Workload:
    """The elementwise workload of a formula, axes merged.

    Args:
        operands: shapes of x0, x1, ..., broadcast to `shape`.
        dtypes: of the result, and of x0, x1, ...
        rows: leave the last axis by itself (`Backend.keeps_rows`).
    """
    dtype, *types = dtypes
    if type_of(formula, types) == NUMBER:
        formula = settled(formula, dtype)
    flat = (flatten_rows if rows else flatten)(shape, operands)
    parameters: dict[str, int | str] = {
        "shape": shape_text(flat.shape),
        "expression": formula_text(formula),
    }
    for position, varies in enumerate(flat.varies):
        own = [extent if v else 1 for extent, v in zip(flat.shape, varies, strict=True)]
        while len(own) > 1 and own[0] == 1:
            own.pop(0)
        if tuple(own) != flat.shape:
            parameters[f"x{position}"] = shape_text(own)
    if any(own != dtype for own in types):
        parameters["types"] = ",".join(types)
    return Workload.of("elementwise", parameters, dtype=dtype)
