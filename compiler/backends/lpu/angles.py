"""Angles stay float32: what sines are taken of, from where it comes in.

    a = Kernel(elementwise multiply(x0,x1))(t, f)         t of the caller's, f a constant
    s = Kernel(elementwise sin(x0))(a)                    both stay float32
    h = Kernel(elementwise dtype=float16 types=float32)(s)

Positions and time steps make angles of many turns. Float16 has eleven bits, which of 1,000 radians
are half a radian: a sine of it is any number. So all that leads from inputs and constants to a sine
without sums is left as it is, with products of a few terms (positions times frequencies), which
here run on the host. What a network computed itself (a layer with sines behind it) is float16.
"""

from __future__ import annotations

from tilesmith.compiler.graph import Graph, Node
from tilesmith.search_space.formula import parse_formula
from tilesmith.search_space.ir.scalar import Call, Scalar, Select
from tilesmith.search_space.schedules.lpu.functions import TURNS

_MOVED = frozenset({"concat", "elementwise", "gather", "pad", "slice", "transpose"})

FEW_TERMS = 4
"""Of a product that may make angles: positions in space have three coordinates."""


def angles(graph: Graph) -> frozenset[str]:
    """Names of the tensors that are angles of inputs and constants, lead to them, or are sines."""
    computed = _computed(graph)
    waiting = [node for node in graph.nodes if _turns(node)]
    found: dict[str, None] = {}
    while waiting:
        node = waiting.pop()
        if node.writes[0] in found:
            continue
        found.update(dict.fromkeys(node.writes))
        makers = (graph.producers.get(name) for name in node.reads if name not in computed)
        waiting += [maker for maker in makers if maker is not None and _leads(maker)]
    return frozenset(found)


def _computed(graph: Graph) -> set[str]:
    """Tensors that sums of the network have a part in; what the host makes has none."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.kind != "host" and not (_leads(node) and found.isdisjoint(node.reads)):
            found.update(node.writes)
    return found


def _leads(node: Node) -> bool:
    """Whether a node makes angles as they are, of what it reads."""
    if node.workload is None:
        return node.kind in ("view", "join")
    if node.workload.operator == "matmul":
        return node.workload.integer("k") <= FEW_TERMS and node.workload.dtype == "float32"
    return node.workload.operator in _MOVED


def _turns(node: Node) -> bool:
    workload = node.workload
    if workload is None or workload.operator != "elementwise":
        return False
    return _has_turns(parse_formula(workload.text("expression")))


def _has_turns(value: Scalar) -> bool:
    match value:
        case Call(name, arguments):
            return name in TURNS or any(map(_has_turns, arguments))
        case Select(_, then, otherwise):
            return _has_turns(then) or _has_turns(otherwise)
        case _:
            return False
