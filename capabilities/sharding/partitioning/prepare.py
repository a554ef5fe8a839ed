"""What a model goes through before it is sharded: known values, recognised operators, nothing dead.

Few passes: whoever annotates tensors finds them under the names of the file. The rest of the
pipeline runs on the segments of the program that comes out.
"""

from dataclasses import dataclass

from tilesmith.capabilities.sharding.layouts.dimension_maps import rules
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.passes.activations import RecogniseActivations
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.passes.normalisation import RecogniseNormalisations
from tilesmith.compiler.rewriting.decomposition import Decompose
from tilesmith.compiler.rewriting.graph_pass import Pass, apply
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.support.errors import ModelError


@dataclass(frozen=True)
class TakeApartUncut(Decompose):
    """Operators that no sharding rule knows are taken apart, if they are others put together.

        y = Attention(q, k, v)                              before
        y = MatMul(Softmax(MatMul(q, Transpose(k))), v)     after

    Contract: as of `decompose`, of which this is a part; operators with a rule stay.
    """

    name = "take-apart-uncut"

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        if node.operator not in rules:
            super().visit(rewriter, node)


PASSES: tuple[Pass, ...] = (
    RemoveDeadCode(),
    FoldConstants(),
    TakeApartUncut(),
    FoldConstants(),
    RecogniseActivations(),
    RecogniseNormalisations(),
    RemoveDeadCode(),
)


def shardable(graph: Graph) -> Graph:
    """The graph as it is sharded.

    Raises:
        ModelError: a tensor whose shape only running the model tells.
    """
    prepared = apply(graph, PASSES)
    for info in prepared.tensors.values():
        if not info.known:
            raise ModelError(
                f"tensor '{info.name}' of '{graph.title}' has a shape that only running the model "
                "tells, so that nobody can say how to cut it; bind the model's sizes with --shape"
            )
    return prepared
