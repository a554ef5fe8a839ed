"""Transposes on both sides of a Concat or of a value's only reader cancel.

Exporters write an assignment to columns as: transpose, assign rows, transpose back.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import Node, attributes_of
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


@dataclass(frozen=True)
class TransposeInside(RulePass):
    """A transposed Concat of transposed parts is a Concat of the parts.

        y = Transpose(Concat(Transpose(a, p), Transpose(b, p), axis=0), q)     before
        y = Concat(a, b, axis=p[0])                       where q undoes p     after

    Contract: any graph in; same values out. Only where the permutations cancel and nobody else
    reads the Concat: work is never added.
    """

    name = "transpose-inside"

    @rule("Transpose")
    def _cancel(self, rewriter: Rewriter, node: Node) -> None:
        join, order = rewriter.producer(node.inputs[0], "Concat"), node.attribute("perm")
        if join is None or order is None or rewriter.only_consumer(join.writes[0]) is None:
            return
        inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        parts = [_untransposed(rewriter, name, inverse) for name in join.inputs]
        sources = tuple(part for part in parts if part is not None)
        if len(sources) < len(parts):
            return
        axis = inverse[int(join.attribute("axis", 0)) % len(order)]
        attributes = attributes_of(axis=axis)
        rewriter.replace(
            [join, node], Node("Concat", sources, node.outputs, join.name, attributes=attributes)
        )


def _untransposed(rewriter: Rewriter, name: str, order: tuple[int, ...]) -> str | None:
    """What `Transpose(x, order)` of gives `name`; None if it is no such transpose."""
    value = rewriter.constant(name)
    if value is not None:
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        dtype = rewriter.info(name).dtype
        return rewriter.add_constant(name, value.transpose(back).copy(), dtype)
    before = rewriter.producer(name, "Transpose")
    stated = tuple(before.attribute("perm") or ()) if before is not None else None
    return before.inputs[0] if before is not None and stated == order else None
