"""ConvTranspose as Conv of an image with zeros between its pixels."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.compiler.decomposition import spreading, take_apart
from tilesmith.compiler.graph import Graph
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter


@dataclass(frozen=True)
class SpreadPixels(Pass):
    """Images are repeated and masked where other families interleave channels.

        y = ConvTranspose(x, w, strides=[2, 2])            before
        y = Conv(Resize(x) * [[1, 0], [0, 0]].., w')       after: w' is w turned round

    Contract: any graph in, weights folded; float32 of known shape; values equal up to roundings.
    """

    name = "spread-pixels"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            take_apart(rewriter, node, spreading)
        return rewriter.finish()
