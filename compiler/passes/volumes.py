"""Operators over three spatial axes become operators over two, and volumes stay lists of frames."""

from dataclasses import dataclass, replace

from tilesmith.compiler.formulas.pointwise_formulas import formula_of
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.decomposition import take_apart, volumes
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter


@dataclass(frozen=True)
class FlattenVolumes(Pass):
    """Convolution and pooling over three axes are taken apart into ones over two.

        t = Conv(x, w); y = Relu(t)                        before: x is n x c x d x h x w
        y = Transpose(View(Relu(Conv(frames of x))))       after: images, n d of them

    Elementwise operators move in front of the transpositions that this brings, so that they join
    the kernel, and what one convolution transposes back the next need not transpose again.

    Contract: any graph in, scales and shifts folded; float32 of known shape; values equal up to
    roundings.
    """

    name = "flatten-volumes"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        unflattened: set[str] = set()
        for node in graph.nodes:
            result = take_apart(rewriter, node, volumes)
            if result is not None:
                unflattened.add(result)
            elif unflattened.intersection(node.reads):
                _move(rewriter, node, unflattened)
        return rewriter.finish()


def _move(rewriter: Rewriter, node: Node, unflattened: set[str]) -> None:
    """f(T(View(a)), T(View(b))) -> T(View(f(a, b))), where `unflattened` are results of such."""
    if node.kind != "host" or len(node.writes) != 1 or node.domain not in ("", INTERNAL_DOMAIN):
        return
    (result,) = node.writes
    varying = [name for name in node.reads if rewriter.constant(name) is None]
    tails = [_tail(rewriter, name) if name in unflattened else None for name in varying]
    shapes = {rewriter.info(name).shape for name in (*varying, result)}
    numbers = [name for name in node.reads if name not in varying]
    if len(shapes) > 1 or any(rewriter.info(name).elements > 1 for name in numbers):
        return
    if formula_of(rewriter, node) is None or any(tail is None for tail in tails):
        return
    known_tails = [tail for tail in tails if tail is not None]
    moves = {move.attributes for _, move in known_tails}
    inner = {rewriter.info(flat.inputs[0]).shape for flat, _ in known_tails}
    if len(moves) != 1 or len(inner) != 1:
        return
    flat, move = known_tails[0]
    sources = {name: view.inputs[0] for name, (view, _) in zip(varying, known_tails, strict=True)}
    image, cut = (rewriter.info(name).dims for name in (flat.inputs[0], flat.writes[0]))
    dtype = rewriter.info(result).dtype  # bytes of a Quantise, truths of a comparison
    first = rewriter.add_tensor(result, dtype, image)
    second = rewriter.add_tensor(result, dtype, cut)
    inputs = tuple(sources.get(name, name) for name in node.inputs)
    rewriter.replace(
        node,
        replace(node, inputs=inputs, outputs=(first,)),
        replace(flat, inputs=(first,), outputs=(second,), name=second),
        replace(move, inputs=(second,), outputs=(result,), name=result),
    )
    unflattened.add(result)


def _tail(rewriter: Rewriter, name: str) -> tuple[Node, Node] | None:
    """The view and the transposition that end what a convolution became, if it ends so."""
    move = rewriter.producer(name, "Transpose")
    flat = rewriter.producer(move.inputs[0]) if move is not None else None
    return (flat, move) if flat is not None and move is not None and is_view(flat) else None
