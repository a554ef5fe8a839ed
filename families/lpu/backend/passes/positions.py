"""Positions stay float32: what sines are taken of and what is rounded, from where it comes in.

    a = Kernel(elementwise multiply(x0,x1))(t, f)         t of the caller's, f a constant
    s = Kernel(elementwise sin(x0))(a)                    both stay float32
    h = Kernel(elementwise dtype=float16 types=float32)(s)

Positions and time steps make angles of many turns. Float16 has eleven bits, which of 1,000 radians
are half a radian: a sine of it is any number. Of a place in an image they are a sixteenth of a
pixel or more, and of what is quantised every 250th byte. So all that leads from inputs and
constants to a sine or to a rounding without sums is left as it is, with products of a few terms
(positions times frequencies), which here run on the host. What a network computed itself (a layer
with sines behind it) is float16; only places between pixels (`sample`) are worked out in float32
of it, since the pixels' own numbers are added.
"""

from collections.abc import Iterable

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.families.lpu.schedules.building_blocks.functions import TURNS
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Call, Scalar, Select
from tilesmith.search_space.operator_parts.formula import parse_formula
from tilesmith.search_space.workloads.template import template_of

_MOVED = frozenset({"concat", "elementwise", "gather", "pad", "slice", "transpose"})

_WHOLE = {name for name, dtype in CONVERSIONS.items() if not is_floating(dtype)} - {"to_bool"}

ROUNDINGS = frozenset({"floor", "ceil", "round", *_WHOLE})
"""Functions that make whole numbers."""

_PLACES = frozenset({"index", "weight"})
"""Operands of `sample` that tell where it reads."""

FEW_TERMS = 4
"""Of a product that may make angles: positions in space have three coordinates."""


def positions(graph: Graph) -> tuple[Node, ...]:
    """Nodes that stay float32, whole numbers and sines made of inputs and constants."""
    computed = _computed(graph)
    turns = (node for node in graph.nodes if _has(node, TURNS))
    rounded = (n for n in graph.nodes if _has(n, ROUNDINGS) and computed.isdisjoint(n.reads))
    exact = dict.fromkeys((*turns, *rounded))
    exact.update(dict.fromkeys(_leading(graph, exact, computed)))
    places = [node for node in graph.nodes if node.workload and _samples(node)]
    exact.update(dict.fromkeys(_leading(graph, places, frozenset())))
    return tuple(node for node in graph.nodes if node in exact and not _samples(node))


def _leading(graph: Graph, ends: Iterable[Node], computed: Iterable[str]) -> list[Node]:
    """Nodes that lead to some by what they read, but for what is computed."""
    kept, waiting, leading = set(computed), list(ends), dict[Node, None]()
    while waiting:
        node = waiting.pop()
        reads = _places(node) if _samples(node) else node.reads
        for name in reads:
            maker = graph.producers.get(name)
            if maker is not None and name not in kept and _leads(maker) and maker not in leading:
                leading[maker] = None
                waiting.append(maker)
    return list(leading)


def _samples(node: Node) -> bool:
    return node.workload is not None and node.workload.operator == "sample"


def _places(node: Node) -> list[str]:
    """What tells a kernel of samples where it reads."""
    operands = template_of("sample").operands(node.work)
    named = zip(operands, node.inputs, strict=False)
    return [name for operand, name in named if operand.name in _PLACES]


def _computed(graph: Graph) -> frozenset[str]:
    """Tensors that sums of the network have a part in; what the host makes has none."""
    computed: set[str] = set()
    for node in graph.nodes:
        if node.kind != "host" and not (_leads(node) and computed.isdisjoint(node.reads)):
            computed.update(node.writes)
    return frozenset(computed)


def _leads(node: Node) -> bool:
    """Whether a node makes positions as they are, of what it reads."""
    if node.workload is None:
        return node.kind in ("view", "join")
    if node.workload.operator == "matmul":
        few = node.workload.integer("k") <= FEW_TERMS
        return few and is_floating(node.workload.dtype)
    return node.workload.operator in _MOVED


def _has(node: Node, functions: frozenset[str]) -> bool:
    """Whether a node's expression has one of some functions."""
    workload = node.workload
    if workload is None or workload.operator != "elementwise":
        return False
    return _within(parse_formula(workload.text("expression")), functions)


def _within(value: Scalar, functions: frozenset[str]) -> bool:
    match value:
        case Call(name, arguments):
            return name in functions or any(_within(a, functions) for a in arguments)
        case Select(_, then, otherwise):
            return _within(then, functions) or _within(otherwise, functions)
        case _:
            return False
