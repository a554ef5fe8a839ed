"""The order of the passes, in one place.

`simplify` works on ONNX operators and makes the graph say what is computed in as few of them as can
be; `to_kernels` turns operators into kernels. Every pass keeps the values (up to roundings).
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.compiler.decomposition import decompose
from tilesmith.compiler.graph import Graph
from tilesmith.compiler.lower import lower
from tilesmith.compiler.passes.activations import recognise_activations
from tilesmith.compiler.passes.affine import fold_affine
from tilesmith.compiler.passes.batch_norm import expand_batch_norm
from tilesmith.compiler.passes.canonical import canonicalise
from tilesmith.compiler.passes.constant_folding import fold_constants
from tilesmith.compiler.passes.dead_code import remove_dead_code
from tilesmith.compiler.passes.elementwise import lower_elementwise
from tilesmith.compiler.passes.epilogues import fuse_epilogues
from tilesmith.compiler.passes.joins import make_joins
from tilesmith.compiler.passes.normalisation import recognise_normalisations
from tilesmith.compiler.passes.padding import fold_padding
from tilesmith.compiler.passes.scales import move_scales
from tilesmith.compiler.passes.selections import add_selections
from tilesmith.compiler.passes.views import make_views

Pass = Callable[[Graph], Graph]

SIMPLIFICATIONS: tuple[Pass, ...] = (
    remove_dead_code,
    fold_constants,
    decompose,
    canonicalise,
    make_views,
    fold_padding,
    recognise_activations,
    recognise_normalisations,
    expand_batch_norm,
    move_scales,
    add_selections,
    fold_affine,
    fold_constants,
    remove_dead_code,
)

LOWERING: tuple[Pass, ...] = (
    make_joins,
    lower,
    fold_constants,
    fuse_epilogues,
    lower_elementwise,
    make_views,
    remove_dead_code,
)


def apply(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """Run passes in order."""
    for step in passes:
        graph = step(graph)
    return graph


def simplify(graph: Graph) -> Graph:
    """The graph in as few, as plain ONNX operators as can be."""
    return apply(graph, SIMPLIFICATIONS)


def to_kernels(graph: Graph) -> Graph:
    """A simplified graph with everything the templates can compute as kernels."""
    return apply(graph, LOWERING)
