"""Bytes as numbers: quantised models between float32 kernels.

Most kernels compute with float32 alone. `BytesAsNumbers` converts bytes before what only moves
them, so that it has a kernel; `StayNumbers` takes out conversions to bytes that are only undone.
"""

from dataclasses import dataclass, replace

from onnx import helper

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.numerics.quantised import BYTES, is_dequantise, is_quantise
from tilesmith.compiler.numerics.whole_numbers import MOVES, NARROW, limits, whole_range
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.lower import typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.expressions.dtypes import to_numpy


@dataclass(frozen=True)
class BytesAsNumbers(Pass):
    """What is moved as bytes is moved as float32.

        p = MaxPool(q)                                         before, q and p of uint8
        p = Cast(MaxPool(Cast(q, float32)), uint8)             after

    Between Quantise, Dequantise and kernels of bytes, what has kernels for bytes moves them.

    Contract: any graph in; values equal; out, no other operator that only moves or picks numbers
    does so with those of 8 or 16 bits where shapes are known.
    """

    name = "bytes-as-numbers"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        kept = _kept(graph)
        for node in graph.nodes:
            if node not in kept and _moves_bytes(rewriter, node):
                _widen(rewriter, node)
        return rewriter.finish()


@dataclass(frozen=True)
class StayNumbers(RulePass):
    """Bytes made only to be read as numbers again are not made.

        y = Cast(Cast(Clip(Round(x), 0, 255), uint8), float32)      before
        y = Clip(Round(x), 0, 255)                                  after

    A tensor of 8 or 16 bits that the caller gives or gets stays one.

    Contract: any graph in; values equal; out, no float32 tensor known to hold whole numbers of an
    element type's range becomes one of that type only to be read as float32.
    """

    name = "stay-numbers"

    @rule("Cast")
    def _shorten(self, rewriter: Rewriter, node: Node) -> None:
        """A whole number, made one of an element type that holds it and a float again, is what it
        was."""
        before = rewriter.producer(node.inputs[0])
        whole = (*NARROW, "int32")
        if not _is_cast(rewriter, node, ("float32",), whole):
            return
        if before is None or not _is_cast(rewriter, before, whole, ("float32",)):
            return
        source, dtype = before.inputs[0], rewriter.info(before.writes[0]).dtype
        bounds, (low, high) = whole_range(rewriter, source), limits(dtype)
        if bounds is not None and low <= bounds[0] and bounds[1] <= high:
            rewriter.bypass(node, source)


def _kept(graph: Graph) -> set[Node]:
    """Operators that move bytes which kernels give or take as bytes."""
    kept: set[Node] = set()
    waiting = [n for n in graph.nodes if is_quantise(n) or is_dequantise(n) or n.kind == "kernel"]
    while waiting:
        node = waiting.pop()
        names = [*node.reads, *node.writes]
        for name in names:
            if graph.info(name).dtype not in BYTES:
                continue
            producer = graph.producers.get(name)
            for other in (*graph.consumers.get(name, ()), *((producer,) if producer else ())):
                if other not in kept and _has_kernel(other):
                    kept.add(other)
                    waiting.append(other)
    return kept


def _has_kernel(node: Node) -> bool:
    """Whether bytes are moved by a view or a kernel."""
    views = is_view(node) or node.is_onnx(*having("reshapes"), "Identity")
    return views or (node.operator in MOVES and node.operator in typed_rules)


def _moves_bytes(rewriter: Rewriter, node: Node) -> bool:
    if node.operator not in MOVES or node.workload is not None:
        return False
    if node.domain not in ("", INTERNAL_DOMAIN) or node.captures:
        return False
    infos = [rewriter.info(name) for name in node.writes]
    if not infos or not rewriter.shapes_known(node) or not all(i.elements for i in infos):
        return False
    if node.operator in having("samples") and node.attribute("mode", "nearest") != "nearest":
        return False
    if node.operator == "MaxPool" and len(node.writes) > 1:
        return False
    return all(info.dtype in NARROW for info in infos)


def _widen(rewriter: Rewriter, node: Node) -> None:
    """Casts around a node that works on float32."""
    inputs: list[str] = []
    before: list[Node] = []
    for name in node.inputs:
        info = rewriter.info(name) if name else None
        if info is None or info.dtype not in NARROW:
            inputs.append(name)
            continue
        wide = rewriter.add_tensor(name, "float32", info.dims)
        before.append(_cast(name, wide, "float32", node.name))
        inputs.append(wide)
    outputs: list[str] = []
    after: list[Node] = []
    for name in node.outputs:
        if not name:
            outputs.append(name)
            continue
        info = rewriter.info(name)
        wide = rewriter.add_tensor(name, "float32", info.dims)
        after.append(_cast(wide, name, info.dtype, node.name))
        outputs.append(wide)
    moved = replace(node, inputs=tuple(inputs), outputs=tuple(outputs))
    rewriter.replace(node, *before, moved, *after)


def _cast(source: str, result: str, dtype: str, name: str) -> Node:
    number = int(helper.np_dtype_to_tensor_dtype(to_numpy(dtype)))
    return Node("Cast", (source,), (result,), name, attributes=attributes_of(to=number))


def _is_cast(
    rewriter: Rewriter, node: Node | None, after: tuple[str, ...], before: tuple[str, ...]
) -> bool:
    if node is None or not node.is_onnx("Cast"):
        return False
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    return result.dtype in after and source.dtype in before and source.known and result.known
