"""Writes along an inner axis: exporters bring the axis to the front, write, and bring it back.

A cache of keys [heads, positions, features] is written at some positions. As three kernels it is
moved twice; as one only what is written is moved.
"""

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.passes.views import behind_views
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text


@dataclass(frozen=True)
class ScatterInside(RulePass):
    """Rows are written where they are.

        t = transpose(x, 1x0x2); s = scatter_nd(t, indices, u); y = transpose(s, 1x0x2)    before
        y = scatter_nd(x, indices, transpose(u, 1x0x2), lead=1)                            after

    Contract: a lowered graph in, elementwise operators may be waiting; same values out. Nothing
    else reads what lies between.
    """

    name = "scatter-inside"

    revisits = False

    @rule("kernel.scatter_nd")
    def _write_inside(self, rewriter: Rewriter, node: Node) -> None:
        scatter = node.work
        indices = scatter.shape("indices")
        if scatter.integer("lead") or len(indices) != 2 or indices[-1] != 1:
            return
        inward = _swap(rewriter.producer(node.inputs[0]))
        outward = _swap(rewriter.only_consumer(node.writes[0]))
        if inward is None or rewriter.only_consumer(inward.writes[0]) is not node:
            return
        before, rows, behind = inward.work.shape("shape")
        if outward is None or outward.work.shape("shape") != (rows, before, behind):
            return
        updates, swaps = _swapped(rewriter, node.inputs[2], (indices[0], before, behind), scatter)
        workload = scatter.with_parameters(shape=shape_text((before, rows, behind)), lead=1)
        operands = (inward.inputs[0], node.inputs[1], updates)
        written = kernel(workload, operands, outward.writes[0], node.name)
        rewriter.replace((inward, node, outward), *swaps, written)


def _swap(node: Node | None) -> Node | None:
    """A kernel that swaps the first two of three axes, else None."""
    workload = node.workload if node is not None else None
    if workload is None or workload.operator != "transpose" or workload.shape("perm") != (1, 0, 2):
        return None
    return node


def _swapped(
    rewriter: Rewriter, name: str, shape: tuple[int, ...], scatter: Workload
) -> tuple[str, list[Node]]:
    """Updates (count, before, behind) as (before, count, behind)."""
    count, before, behind = shape
    if count == 1 or before == 1:
        return name, []
    swap = _swap(rewriter.producer(behind_views(rewriter, name)))
    if swap is not None and swap.work.shape("shape") == (before, count, behind):
        return swap.inputs[0], []
    result = rewriter.add_tensor(name, scatter.dtype, (before, count, behind))
    parameters: dict[str, ParameterValue] = {"shape": shape_text(shape), "perm": "1x0x2"}
    workload = Workload.of("transpose", parameters, dtype=scatter.dtype)
    return result, [kernel(workload, (name,), result, result)]
