"""What a model goes through before it is sharded: known values, recognised operators, nothing dead.

Few passes: whoever annotates tensors finds them under the names of the file. The rest of the
pipeline runs on the segments of the program that comes out.
"""

from __future__ import annotations

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.graph_pass import Pass, apply
from tilesmith.compiler.passes.activations import RecogniseActivations
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.passes.normalisation import RecogniseNormalisations
from tilesmith.search_space.errors import ModelError

PASSES: tuple[Pass, ...] = (
    RemoveDeadCode(),
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
    found = apply(graph, PASSES)
    for info in found.tensors.values():
        if not info.known:
            raise ModelError(
                f"tensor '{info.name}' of '{graph.name}' has a shape that only running the model "
                "tells, so that nobody can say how to cut it; bind the model's sizes with --shape"
            )
    return found
