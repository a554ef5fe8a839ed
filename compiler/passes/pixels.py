"""Pixels by products, where moving elements costs more than multiplying zeros (`Pipeline`)."""

from dataclasses import dataclass
from typing import ClassVar

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Rule, spreading, take_apart, weighting
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass
from tilesmith.search_space.support.registry import Registry


@dataclass(frozen=True)
class _Pixels(RulePass):
    """Takes nodes apart by rules of its own, before those for all families are asked."""

    rules: ClassVar[Registry[Rule]]

    revisits = False

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        take_apart(rewriter, node, self.rules)


@dataclass(frozen=True)
class SpreadPixels(_Pixels):
    """Images are repeated and masked where other families interleave channels.

        y = ConvTranspose(x, w, strides=[2, 2])            before
        y = Conv(Resize(x) * [[1, 0], [0, 0]].., w')       after: w' is w turned round

    Contract: any graph in, weights folded; float32 of known shape; values equal up to roundings.
    """

    name = "spread-pixels"
    rules = spreading


@dataclass(frozen=True)
class WeightPixels(_Pixels):
    """Resized images are products where other families sample them.

        y = Resize(x, mode="linear")                        before: x is n x c x h x w
        y = MatMul(MatMul(a, x), b)                         after: a is h' x h, b is w x w'

    Contract: any graph in, weights folded; float32 of known shape; values equal up to roundings.
    """

    name = "weight-pixels"
    rules = weighting
