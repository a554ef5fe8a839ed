"""Expand and Tile of any element type -> a copy that broadcasts, as an `elementwise` kernel.

Those of float32 were sums with zero before (`decompositions.repetition`), which what reads them
takes in.
"""

from collections.abc import Sequence

from tilesmith.compiler.graph.graph import Node, view
from tilesmith.compiler.rewriting.lower import Parameters, is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.operator_parts.flattening import flatten


@typed_rules.register("Expand")
@typed_rules.register("Tile")
def lower_repetition(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    """Tile: (a, b) three times along the last axis is (a, 1, b) -> (a, 3, b) -> (a, 3 b)."""
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if not is_movable(source):
        return None
    before, after = source.dims, result.dims
    if node.operator == "Tile":
        pairs = [(whole // part, part) for part, whole in zip(before, after, strict=True)]
        before = tuple(n for _, part in pairs for n in (1, part))
        after = tuple(n for pair in pairs for n in pair)
    flat = flatten(after, [before])
    own = tuple(n if v else 1 for n, v in zip(flat.shape, flat.varies[0], strict=True))
    stated: Parameters = {"shape": tuple(flat.shape), "expression": "x0", "x0": own}
    single = rewriter.add_tensor(source.name, source.dtype, before)
    repeated = rewriter.add_tensor(result.name, result.dtype, after)
    return [
        view(source.name, single),
        make_kernel(rewriter, node, "elementwise", (single,), output=repeated, **stated),
        view(repeated, result.name),
    ]
