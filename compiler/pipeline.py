"""The order of the passes, in one place.

`simplify` works on ONNX operators and makes the graph say what is computed in as few of them as can
be; `to_kernels` turns operators into kernels. Every pass keeps the values (up to roundings).
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.decomposition import decompose
from compiler.graph import Graph
from compiler.lower import lower
from compiler.passes.activations import recognise_activations
from compiler.passes.affine import fold_affine
from compiler.passes.batch_norm import expand_batch_norm
from compiler.passes.canonical import canonicalise
from compiler.passes.constant_folding import fold_constants
from compiler.passes.dead_code import remove_dead_code
from compiler.passes.elementwise import lower_elementwise
from compiler.passes.epilogues import fuse_epilogues
from compiler.passes.joins import make_joins
from compiler.passes.normalisation import recognise_normalisations
from compiler.passes.padding import fold_padding
from compiler.passes.scales import move_scales
from compiler.passes.selections import add_selections
from compiler.passes.views import make_views

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
