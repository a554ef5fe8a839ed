"""Float16 beside float32: what whole numbers are scaled to goes on in the precision of the rest.

    t = Kernel(conv2d uint8 epilogue=correction,rescale)(x, w, ..)      float32, as VXM makes it
    y = Kernel(transpose dtype=float32)(t)                              before: MXM has no float32
    h = Kernel(elementwise dtype=float16 types=float32)(t)           after
    y = Kernel(transpose dtype=float16)(h)

Products of quantised tensors give float32, and take it (residuals). Lowering a model's precision
leaves whatever is connected with these in float32, which here has no products and turns no lanes.
So conversions are put between first, each a row of VXM. The same way positions are parted from the
rest, which have to be float32 (`positions`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilesmith.compiler.graph.graph import Graph, Node, kernel
from tilesmith.compiler.numerics.precision import LowerPrecision, in_precision, precision_dtype
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.lpu.backend.passes.positions import positions
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

WIDE = precision_dtype("fp32")


@dataclass(frozen=True)
class LowerBesideScales(LowerPrecision):
    """See the module's docstring.

    Contract: a lowered graph of float32 in; out, as `LowerPrecision`, but that kernels which can
    are of the precision, whoever makes what they read.
    """

    name = "lower-beside-scales"

    def run(self, graph: Graph) -> Graph:
        narrow = precision_dtype(self.precision)
        rewriter = Rewriter(graph)
        for name in _scaled(graph, narrow):
            _part(rewriter, name, narrow)
        inside = positions(graph)
        written = frozenset(name for node in inside for name in node.writes)
        for name in _bordering(graph, inside):
            _part(rewriter, name, narrow, written)
        return super().run(rewriter.finish())

    def wide(self, graph: Graph) -> set[str]:
        """Positions, and what they are made of."""
        return set(_bordering(graph, positions(graph)))


def _bordering(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    """Tensors of float32 that nodes of positions read or write, and that others may read too."""
    names = dict.fromkeys(name for node in nodes for name in (*node.reads, *node.writes))
    return [n for n in names if graph.info(n).dtype == WIDE and graph.info(n).known]


def _scaled(graph: Graph, narrow: str) -> list[str]:
    """Tensors that kernels of whole numbers make or take in float32, in order."""
    scaled: dict[str, None] = {}
    for node in graph.nodes:
        if node.workload is None or _floating(node, narrow):
            continue
        template = template_of(node.workload.operator)
        operands = (*template.operands(node.workload), template.output(node.workload))
        for name, operand in zip((*node.inputs, *node.outputs), operands, strict=False):
            if operand.dtype == WIDE and name not in graph.constants and graph.info(name).known:
                scaled[name] = None
    return list(scaled)


def _floating(node: Node, narrow: str) -> bool:
    """Whether a kernel changes with the precision, or a view or join does."""
    if node.workload is None:
        return node.kind in ("view", "join")
    return in_precision(node.workload, narrow) != node.workload


def _part(rewriter: Rewriter, name: str, narrow: str, inside: frozenset[str] = frozenset()) -> None:
    """A tensor that stays float32, and one of the precision beside it, for all who want that.

    Args:
        inside: what nodes write that work in float32 themselves.
    """
    readers = [
        node
        for node in rewriter.consumers(name)
        if _floating(node, narrow) and inside.isdisjoint(node.outputs)
    ]
    maker = rewriter.producer(name)
    computed = maker is not None and _floating(maker, narrow) and inside.isdisjoint(maker.outputs)
    info = rewriter.info(name)
    if not info.elements or not (readers or computed):
        return
    if name in rewriter.constants:
        half = rewriter.add_constant(name, rewriter.constants[name], WIDE)  # its own, to be narrow
    else:
        half = rewriter.add_tensor(name, narrow, info.dims)
    for node in readers:
        rewriter.replace(node, replace(node, inputs=_renamed(node.inputs, name, half)))
    if half in rewriter.constants:
        return
    if computed and maker is not None:
        rewriter.replace(
            maker, replace(maker, outputs=_renamed(maker.outputs, name, half)),
            _conversion(half, name, info.dims, (WIDE, narrow)),
        )  # fmt: skip
        return
    conversion = _conversion(name, half, info.dims, (narrow, WIDE))
    if maker is not None:
        rewriter.replace(maker, maker, conversion)
    else:  # of the caller's
        first = next(node for node in rewriter.nodes() if half in node.reads)
        rewriter.replace(first, conversion, first)


def _conversion(source: str, to: str, dims: tuple[int, ...], types: tuple[str, str]) -> Node:
    """A kernel that converts a tensor: (to, from)."""
    parameters = {
        "shape": shape_text(dims or (1,)),
        "expression": "to_float32(x0)",
        "types": types[1],
    }
    return kernel(Workload.of("elementwise", parameters, dtype=types[0]), (source,), to, to)


def _renamed(names: Iterable[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in names)
