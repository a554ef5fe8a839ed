"""Interpolation of pixels as products with the matrices of their weights."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.compiler.decomposition import take_apart, weighting
from tilesmith.compiler.graph import Graph
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter


@dataclass(frozen=True)
class WeightPixels(Pass):
    """Resized images are products where other families gather rows and add them.

        y = Resize(x, mode="linear")                        before: x is n x c x h x w
        y = MatMul(MatMul(a, x), b)                         after: a is h' x h, b is w x w'

    Contract: any graph in, weights folded; float32 of known shape; values equal up to roundings.
    """

    name = "weight-pixels"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            take_apart(rewriter, node, weighting)
        return rewriter.finish()
