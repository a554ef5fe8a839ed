"""Masks written as selections: as sums they are one pattern with all other masks."""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.access import uniform
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

LOW = -1e9
"""From here down a number is as good as minus infinity beside scores."""


@dataclass(frozen=True)
class AddSelections(RulePass):
    """Scores that a softmax leaves out are lowered by addition, not by selection.

        p = Softmax(Where(keep, s, low))             before: low is one number, -1e9 or less
        p = Softmax(Add(s, Where(keep, 0, lowest)))  after: minus infinity, or the least number

    so that the selection is made once, of the mask alone, and attention with a mask is one pattern.
    Where `exact`, it is made again of what is added, for a family whose attention selects:

        m = Where(keep, 0, lowest); p = Softmax(Where(LessOrEqual(m, lowest), m, Add(s, m)))

    Contract: any graph in. Values are equal where scores are numbers below 1e30: the sum of such a
    score and the least number is that number, so that keys which are left out as a whole weigh
    alike, and beside others nothing. What is no number at a key that is left out stays so, unless
    `exact`.
    """

    name = "add-selections"

    exact: bool = False

    @rule("Softmax", "tilesmith.Softmax")
    def _add(self, rewriter: Rewriter, softmax: Node) -> None:
        node = rewriter.producer(softmax.inputs[0], "Where")
        if node is None or rewriter.only_consumer(node.outputs[0]) is not softmax:
            return
        keep, kept, other = node.inputs
        low = uniform(rewriter.constant, other)
        inverted = low is None
        if inverted:
            kept, other = other, kept
            low = uniform(rewriter.constant, other)
        info, mask = rewriter.info(kept), rewriter.info(keep)
        if low is None or low > LOW or not (info.known and mask.known) or info.dtype != "float32":
            return
        if rewriter.constant(kept) is not None or info.dims != rewriter.info(node.outputs[0]).dims:
            return
        zero = rewriter.add_constant("kept", np.array(0.0, dtype=np.float32), "float32")
        lowest = -np.inf if np.isneginf(low) else np.finfo(np.float32).min
        left_out = rewriter.add_constant("left_out", np.array(lowest, np.float32), "float32")
        chosen = rewriter.add_tensor(f"{node.outputs[0]}.mask", info.dtype, mask.dims)
        choices = (keep, left_out, zero) if inverted else (keep, zero, left_out)
        parts = [replace(node, inputs=choices, outputs=(chosen,))]
        if self.exact:
            total = rewriter.add_tensor(f"{node.outputs[0]}.sum", info.dtype, info.dims)
            left = rewriter.add_tensor(f"{node.outputs[0]}.left", "bool", mask.dims)
            parts += [
                Node("Add", (kept, chosen), (total,), f"{node.name}.add"),
                Node("LessOrEqual", (chosen, left_out), (left,), f"{node.name}.left"),
                Node("Where", (left, chosen, total), node.outputs, f"{node.name}.select"),
            ]
        else:
            parts.append(Node("Add", (kept, chosen), node.outputs, f"{node.name}.add"))
        rewriter.replace((node,), *parts)
