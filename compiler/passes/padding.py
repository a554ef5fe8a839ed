"""Padding that exporters write as an operator of its own, before the convolution that could pad."""

from dataclasses import dataclass, replace

from tilesmith.compiler.graph.access import integers, pads, scalar
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


@dataclass(frozen=True)
class FoldPadding(RulePass):
    """Padding with zeros moves into the convolution that reads it.

        t = Pad(x, pads=[0, 0, 0, 0, 0, 0, 1, 1]); y = Conv(t, w)      before
        y = Conv(x, w, pads=[0, 0, 1, 1])                              after

    Contract: any graph in; only spatial axes padded, by constants from 0 on; same values.
    """

    name = "fold-padding"

    @rule("Conv")
    def _fold(self, rewriter: Rewriter, node: Node) -> None:
        before, weight = rewriter.producer(node.inputs[0], "Pad"), rewriter.info(node.inputs[1])
        if before is None or node.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return
        sides = spatial_padding(rewriter, before) if weight.known else None
        if sides is None:
            return
        rank = len(sides)
        own = pads(node, rewriter.info(node.inputs[0]).dims[2:], weight.dims[2:])
        total = [(a + c, b + d) for (a, b), (c, d) in zip(sides, own, strict=True)]
        kept = dict(node.attributes) | {"auto_pad": "NOTSET"}
        kept["pads"] = (*(pair[0] for pair in total), *(pair[1] for pair in total))
        assert len(kept["pads"]) == 2 * rank
        inputs = (before.inputs[0], *node.inputs[1:])
        rewriter.replace(node, replace(node, inputs=inputs, attributes=tuple(sorted(kept.items()))))


def spatial_padding(rewriter: Rewriter, node: Node) -> list[tuple[int, int]] | None:
    """(before, after) of each spatial axis of a Pad with zeros; None if it is anything else."""
    info = rewriter.info(node.inputs[0])
    flat = integers(node, "pads", 1, rewriter.constant)
    axes = integers(node, "", 3, rewriter.constant)
    if not info.known or flat is None or axes is None or min(flat) < 0:
        return None
    if node.attribute("mode", "constant") != "constant":
        return None
    if scalar(node, "value", 2, rewriter.constant, 0.0) != 0.0:
        return None
    rank, count = len(info.dims), len(flat) // 2
    padding = [(0, 0)] * rank
    for position, axis in enumerate(axes or range(rank)):
        padding[axis] = (flat[position], flat[count + position])
    return padding[2:] if padding[:2] == [(0, 0), (0, 0)] else None
