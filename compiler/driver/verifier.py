"""The graph verifier: what has to hold of every graph, whatever pass it comes from.

A pass that leaves a wrong graph behind is found here, where it happened, and not as wrong numbers
or a failed assertion of a later one. A rule is a generator of faults, (node or None, what is
wrong); `GRAPH_RULES` look at a graph as a whole, `NODE_RULES` at one node beside the tensors it
touches, and `_interface` at a graph beside the one before it. It runs between passes in the tests
and with `tilesmith compile --verify-passes`.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.onnx.inference.inference import infer_outputs
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.expressions.dtypes import STORED, to_numpy
from tilesmith.search_space.support.errors import ModelError, VerificationError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import shape_text

Fault = tuple[Node | None, str]


def verify(graph: Graph) -> None:
    """Check every rule of a graph by itself.

    Raises:
        VerificationError: a rule is broken; the message names the node and the rule.
    """
    Verifier().verify(graph)


class Verifier:
    """An observer of passes that verifies the graph after each, the imported graph first.

    Nodes that were right beside the same tensors are not looked at again.
    """

    def __init__(self) -> None:
        self._known: dict[Node, tuple[tuple[TensorInfo, bool], ...]] = {}
        self._last: Graph | None = None

    def __call__(self, step: Pass, before: Graph, after: Graph) -> None:
        """Raise `VerificationError` if `after` breaks a rule."""
        if before is not self._last:
            self.verify(before)
        if after is not before:
            for name, wrong in _interface(before, after):
                raise _error(after, step.name, name, None, wrong)
            self.verify(after, step.name)
        self._last = after

    def verify(self, graph: Graph, after: str = "import") -> None:
        """Raise `VerificationError` if a rule of the graph by itself is broken.

        Args:
            after: the name of the pass that it comes from, for the message.
        """
        for name, rule in GRAPH_RULES.items():
            for node, wrong in rule(graph):
                raise _error(graph, after, name, node, wrong)
        for node in graph.nodes:
            touched = tuple(
                (graph.tensors[name], name in graph.constants)
                for name in (*node.reads, *node.writes)
            )
            if self._known.get(node) == touched:
                continue
            for name, node_rule in NODE_RULES.items():
                for wrong in node_rule(graph, node):
                    raise _error(graph, after, name, node, wrong)
            self._known[node] = touched


def _error(graph: Graph, after: str, rule: str, node: Node | None, wrong: str) -> VerificationError:
    where = f"{node.describe()} " if node is not None else ""
    return VerificationError(f"after {after}, graph '{graph.name}' breaks '{rule}': {where}{wrong}")


# -- the graph as a whole -----------------------------------------------------------------------
def _declared(graph: Graph) -> Iterator[Fault]:
    """Every tensor named has a `TensorInfo` of that name; none is declared that nobody names."""
    given = (info.name for info in (*graph.inputs, *graph.outputs))
    named: dict[str, Node | None] = dict.fromkeys((*given, *graph.constants))
    for node in graph.nodes:
        for name in (*node.reads, *node.writes):
            named.setdefault(name, node)
    for name, where in named.items():
        info = graph.tensors.get(name)
        if info is None or info.name != name:
            yield where, f"names '{name}', which is not declared under that name"
    for name in graph.tensors:
        if name not in named:
            yield None, f"'{name}' is declared, and nothing names it"


def _single_assignment(graph: Graph) -> Iterator[Fault]:
    """A tensor is an input, a constant, or written by one node."""
    written = {info.name for info in graph.inputs}
    for name in graph.constants:
        if name in written:
            yield None, f"constant '{name}' is an input, too"
    written |= graph.constants.keys()
    for node in graph.nodes:
        for name in node.writes:
            if name in written:
                yield node, f"writes '{name}', which has a value already"
            written.add(name)


def _order(graph: Graph) -> Iterator[Fault]:
    """A node reads what is there before it runs; outputs are there in the end."""
    present = {info.name for info in graph.inputs} | graph.constants.keys()
    for node in graph.nodes:
        for name in node.reads:
            if name not in present:
                yield node, f"reads '{name}', which nothing before it writes"
        present.update(node.writes)
    for info in graph.outputs:
        if info.name not in present:
            yield None, f"output '{info.name}' is never written"


def _types(graph: Graph) -> Iterator[Fault]:
    """Element types are those Tilesmith knows, or unknown; extents are not negative."""
    for info in graph.tensors.values():
        if info.dtype not in ("", *STORED) and not is_value_type(info.dtype):
            yield None, f"'{info.name}' has the unknown element type '{info.dtype}'"
        if info.shape is not None and any(extent < 0 for extent in info.shape):
            yield None, f"'{info.name}' has the shape {shape_text(info.shape)}"
    for info in (*graph.inputs, *graph.outputs):
        inside = graph.tensors[info.name]
        if info.name not in graph.converted and (info.dtype, info.shape) != (
            inside.dtype, inside.shape
        ):  # fmt: skip
            yield None, f"'{info.name}' is {_text(info)} for the caller and {_text(inside)} inside"


def _constants(graph: Graph) -> Iterator[Fault]:
    """A constant's array is what is declared, and somebody reads it."""
    read = {name for node in graph.nodes for name in node.reads} | graph.output_names
    for name, value in graph.constants.items():
        info = graph.tensors[name]
        if info.known and (value.shape != info.shape or value.dtype != to_numpy(info.dtype)):
            yield (
                None,
                (
                    f"constant '{name}' is declared {_text(info)} "
                    f"and is {value.dtype}[{shape_text(value.shape)}]"
                ),
            )
        if name not in read:
            yield None, f"nothing reads the constant '{name}'"


GRAPH_RULES: Mapping[str, Callable[[Graph], Iterator[Fault]]] = {
    "declared": _declared,
    "single assignment": _single_assignment,
    "order": _order,
    "types": _types,
    "constants": _constants,
}
"""Rules of a graph as a whole, each relying on those before it."""


# -- one node -----------------------------------------------------------------------------------
def _device(graph: Graph, node: Node) -> Iterator[str]:
    """What a kernel, view or join touches is known; it writes one tensor."""
    if node.kind == "host":
        return
    several = node.kind == "control"
    if not several and (len(node.outputs) != 1 or "" in node.outputs or "" in node.inputs):
        yield "is no host operator and leaves out operands, or has not one output"
    for name in (*node.reads, *node.writes):
        if not graph.tensors[name].known:
            yield f"is no host operator and touches '{name}' of unknown shape or type"


def _kernel(graph: Graph, node: Node) -> Iterator[str]:
    """A kernel's operands, those of its epilogue included, are its workload's, in order."""
    if node.workload is None:
        return
    template = template_of(node.workload.operator)
    operands = template.operands(node.workload)
    if len(operands) != len(node.inputs):
        yield f"has {len(node.inputs)} inputs; '{node.workload}' takes {len(operands)}"
    pairs = zip((*operands, template.output(node.workload)), (*node.inputs, *node.outputs))  # noqa: B905
    for operand, name in pairs:
        info = graph.tensors[name]
        if (info.dtype, info.elements) != (operand.dtype, int(np.prod(operand.shape))):
            yield (
                f"has '{name}', {_text(info)}, as operand {operand.name} of '{node.workload}', "
                f"which is {operand.dtype}[{shape_text(operand.shape)}]"
            )
    tensors = dict(zip((operand.name for operand in operands), node.inputs))  # noqa: B905
    for name in node.workload.constants:
        if name not in tensors:
            yield f"is constant in operand {name}, which '{node.workload}' does not have"
        elif tensors[name] not in graph.constants:
            yield f"is constant in operand {name}, and '{tensors[name]}' is no constant"


def _view(graph: Graph, node: Node) -> Iterator[str]:
    """A view lies within what it shows, and has its element type."""
    if node.kind != "view":
        return
    source, result = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    offset = int(node.attribute("offset", 0))
    if source.dtype != result.dtype:
        yield f"shows {_text(source)} as {_text(result)}"
    if offset < 0 or offset + result.elements > source.elements:
        yield f"shows {result.elements} elements from {offset} on, of {source.elements}"


def _join(graph: Graph, node: Node) -> Iterator[str]:
    """A join's parts make up its result."""
    if node.kind != "join":
        return
    parts, result = [graph.tensors[name] for name in node.inputs], graph.tensors[node.outputs[0]]
    elements = sum(part.elements for part in parts)
    if elements != result.elements or any(part.dtype != result.dtype for part in parts):
        yield f"has parts of {elements} elements for {_text(result)}"


def _operator(graph: Graph, node: Node) -> Iterator[str]:
    """An ONNX operator's outputs are what ONNX infers of its inputs, where it can tell."""
    if node.domain or node.workload is not None or graph.converted.keys() & set(node.reads):
        return
    try:
        inferred = infer_outputs(node, graph.tensors, graph.constants, dict(graph.opsets))
    except ModelError as error:
        yield f"cannot be computed: {error}"
        return
    for name in node.writes:  # ONNX infers outputs that are left out, too
        info, expected = graph.tensors[name], inferred.get(name, graph.tensors[name])
        shapes_differ = None not in (expected.shape, info.shape) and expected.shape != info.shape
        types_differ = "" not in (expected.dtype, info.dtype) and expected.dtype != info.dtype
        if shapes_differ or (types_differ and name not in graph.converted):
            yield f"writes {_text(expected)} to '{name}', declared {_text(info)}"


NODE_RULES: Mapping[str, Callable[[Graph, Node], Iterator[str]]] = {
    "device": _device,
    "kernel": _kernel,
    "view": _view,
    "join": _join,
    "operator": _operator,
}
"""Rules of one node, each relying on those before it."""


# -- what passes keep ---------------------------------------------------------------------------
def _interface(before: Graph, after: Graph) -> Iterator[tuple[str, str]]:
    """A pass leaves the caller's inputs and outputs as they are."""
    for what, old, new in (
        ("inputs", before.inputs, after.inputs),
        ("outputs", before.outputs, after.outputs),
    ):
        if old != new:
            yield "interface", f"the {what} were {_texts(old)} and are {_texts(new)}"


def _texts(infos: tuple[TensorInfo, ...]) -> str:
    return ", ".join(f"{info.name}: {_text(info)}" for info in infos) or "none"


def _text(info: TensorInfo) -> str:
    shape = "?" if info.shape is None else shape_text(info.shape)
    return f"{info.dtype or '?'}[{shape}]"
