"""Loop, Scan and If whose bodies are compiled: nodes that run graphs of kernels.

What a body computes becomes kernels by the same passes as the model around it. Semantics are those
of Loop 23, Scan 23 and If 23 of the ONNX standard, which earlier opsets (Scan from 9 on) share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.compiler.graph.graph import (
    BRANCH,
    ENDLESS,
    INTERNAL_DOMAIN,
    REPEAT,
    Body,
    Carried,
    Graph,
    Node,
    Row,
    TensorInfo,
    attributes_of,
)
from tilesmith.compiler.graph.sources import from_one
from tilesmith.compiler.numerics.index_ranges import runs_unchecked
from tilesmith.compiler.onnx.bodies import (
    BodySurroundings,
    Opened,
    OpenedBefore,
    endless,
    keeps_shapes,
    loop_body,
    opened_body,
)
from tilesmith.compiler.onnx.importer import import_body
from tilesmith.compiler.rewriting.recurrent import OPERATORS, taken_apart
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass
from tilesmith.search_space.expressions.ranges import WholeRange


@dataclass(frozen=True)
class OpenBodies(RulePass):
    """Loop, Scan and If become nodes whose bodies are graphs of kernels.

        s, ys = Loop(trips, true, s0) body=<ONNX graph>                             before
        s, ys = Repeat(s0, trips=8) body=<h = Kernel(matmul ...)(entry, w) ...>     after

    LSTM, GRU and RNN do, too, by products of the whole input and a Scan of the rest.

    Contract: any graph in; same values; a node is replaced only if all of its bodies become
    kernels, their tensors keep their shapes from iteration to iteration, and the number of rows
    that a loop stacks is known; any other stays as it is. `lower` takes a body's graph to kernels.
    """

    name = "open-bodies"

    lower: Callable[[Graph], Graph]
    before: OpenedBefore = field(default_factory=OpenedBefore, compare=False, repr=False)
    kernels: dict[tuple[Graph, tuple[tuple[str, WholeRange], ...]], Graph | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Of bodies that were lowered, with the ranges of their inputs."""

    revisits = False

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        replacement = self.replacement(rewriter, node)
        if replacement is not None:
            rewriter.replace(node, *replacement)

    def replacement(self, rewriter: Rewriter, node: Node) -> list[Node] | None:
        """What stands for a node; None where it stays."""
        if node.is_onnx(*OPERATORS):
            return self._recurrent(rewriter, node)
        return _OPENERS[node.operator](self, rewriter, node) if node.is_onnx(*_OPENERS) else None

    def _recurrent(self, rewriter: Rewriter, node: Node) -> list[Node] | None:
        """An LSTM, a GRU or an RNN: its parts, their loops opened; None if one stays closed."""
        nodes: list[Node] = []
        for part in taken_apart(rewriter, node) or ():
            opened = _scan(self, rewriter, part) if part.operator == "Scan" else [part]
            if opened is None:
                return None
            nodes += (_from_one(inner, node.sources) for inner in opened)
        return nodes or None

    def opened(
        self,
        rewriter: Rewriter,
        node: Node,
        name: str,
        given: Sequence[TensorInfo],
        results: Sequence[str],
    ) -> Opened | None:
        """The body `name` of a node, as kernels; None if something of it is on the host.

        Args:
            given: type and shape of each of its inputs.
            results: dtype of each of its outputs.
        """
        body = node.attribute(name)
        opened = opened_body(body, given, results, _around(rewriter), import_body, self.before)
        return None if opened is None else self.lowered(opened)

    def lowered(self, body: Opened, **known: WholeRange) -> Opened | None:
        """A body as kernels; None if something of it is on the host.

        Args:
            known: ranges of inputs of the body.
        """
        key = body.graph, tuple(known.items())
        if key not in self.kernels:
            lowered = self.lower(body.graph)
            self.kernels[key] = lowered if _is_native(lowered, known) else None
        graph = self.kernels[key]
        return None if graph is None else replace(body, graph=graph)


def _from_one(node: Node, sources: tuple[str, ...]) -> Node:
    """A part of a node, whose bodies are made of it as well."""
    if not node.bodies:
        return node
    bodies = (replace(body, graph=from_one(body.graph, sources)) for body in node.bodies)
    return replace(node, bodies=tuple(bodies), sources=sources)


def _is_native(graph: Graph, known: Mapping[str, WholeRange]) -> bool:
    """Whether nothing of it is on the host, nor has to be looked at there while it runs."""
    return all(node.kind != "host" for node in graph.nodes) and runs_unchecked(graph, known)


# -- what goes in and out -----------------------------------------------------------------------
class _Outside:
    """The inputs of a node under construction, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def number(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def shared(self, body: Opened) -> tuple[tuple[int, str], ...]:
        pairs = zip(body.outside, body.captured, strict=True)
        return tuple((self.number(name), inside) for name, inside in pairs)


def _branches(step: OpenBodies, rewriter: Rewriter, node: Node) -> list[Node] | None:
    condition = rewriter.info(node.inputs[0])
    if not condition.known or condition.elements != 1:
        return None
    outside, bodies = _Outside(), []
    outside.number(condition.name)
    if not all(node.outputs):
        return None
    results = [rewriter.info(name) for name in node.outputs]
    for name in ("then_branch", "else_branch"):
        branch = step.opened(rewriter, node, name, (), [info.dtype for info in results])
        if branch is None or len(branch.graph.outputs) != len(results):
            return None
        writes = []
        for position, (inner, outer) in enumerate(zip(branch.graph.outputs, results, strict=True)):
            if (inner.dtype, inner.shape) != (outer.dtype, outer.shape):
                return None
            writes.append(Row(position, inner.name))
        shared = outside.shared(branch)
        bodies.append(Body(branch.graph, shared, writes=tuple(writes), called=branch.called))
    return [
        Node(
            BRANCH, tuple(outside.names), node.outputs, node.name, INTERNAL_DOMAIN,
            bodies=tuple(bodies),
        )
    ]  # fmt: skip


def _loop(step: OpenBodies, rewriter: Rewriter, node: Node) -> list[Node] | None:
    limit, condition = node.input(0), node.input(1)
    states = [rewriter.info(name) for name in node.inputs[2:]]
    body = loop_body(node, _around(rewriter), import_body, step.before)
    if body is None or not keeps_shapes(body, 1, states):
        return None
    first = rewriter.constant(condition) if condition else np.array(True)
    forever = endless(body, first)
    trips = rewriter.constant(limit) if limit else np.array(ENDLESS)
    most = ENDLESS if trips is None else max(1, int(trips.reshape(-1)[0]))
    lowered = step.lowered(body, **{body.inputs[0]: (0, most - 1)})
    if lowered is None:
        return None
    rows = lowered.graph.outputs[1 + len(states) :]
    if (rows and not forever) or (not limit and forever):
        return None  # how many rows there are nobody knows; or a loop that never ends
    if trips is None and (rows or not rewriter.info(limit).known):
        return None
    if trips is not None and int(trips.reshape(-1)[0]) < 1:
        return None
    results = [rewriter.info(name) for name in node.writes]
    if not all(info.known for info in results):
        return None
    outside = _Outside()
    carried = [
        Carried(outside.number(info.name), entry, given.name, _number(node, position))
        for position, (info, entry, given) in enumerate(
            zip(states, lowered.inputs[2:], lowered.graph.outputs[1:], strict=False)
        )
    ]
    test = "" if forever else lowered.inputs[1]
    if test or _reads_condition(lowered):
        start = outside.number(condition) if condition else -1
        carried.append(Carried(start, lowered.inputs[1], lowered.graph.outputs[0].name))
    inner = Body(
        lowered.graph, outside.shared(lowered), tuple(carried), (),
        _rows(node, lowered, len(states), len(states) + 1), lowered.inputs[0], lowered.called,
    )  # fmt: skip
    number = outside.number(limit) if trips is None else -1
    return [_repeat(node, outside, inner, trips=most, limit=number, test=test)]


def _scan(step: OpenBodies, rewriter: Rewriter, node: Node) -> list[Node] | None:
    count = int(node.attribute("num_scan_inputs"))
    held = len(node.inputs) - count
    states = [rewriter.info(name) for name in node.inputs[:held]]
    scanned = [rewriter.info(name) for name in node.inputs[held:]]
    if not all(info.known for info in (*states, *scanned, *map(rewriter.info, node.writes))):
        return None
    axes = [
        axis % len(info.dims)
        for axis, info in zip(_each(node, "scan_input_axes", count), scanned, strict=True)
    ]
    lengths = {info.dims[axis] for axis, info in zip(axes, scanned, strict=True)}
    if len(lengths) != 1 or (trips := lengths.pop()) < 1:
        return None
    slices = [
        TensorInfo("", info.dtype, (*info.dims[:axis], *info.dims[axis + 1 :]))
        for axis, info in zip(axes, scanned, strict=True)
    ]
    dtypes = _dtypes(rewriter, node, states)
    opened = step.opened(rewriter, node, "body", (*states, *slices), dtypes)
    if opened is None or not keeps_shapes(opened, 0, states):
        return None
    outside = _Outside()
    before: list[Node] = []
    after: list[Node] = []
    carried = [
        Carried(outside.number(info.name), entry, given.name, _number(node, position))
        for position, (info, entry, given) in enumerate(
            zip(states, opened.inputs, opened.graph.outputs, strict=False)
        )
    ]
    reads = []
    for position, back in enumerate(_each(node, "scan_input_directions", count)):
        source = scanned[position]
        moved = _axis_first(rewriter, source, axes[position], before)
        start, stride = (trips - 1, -1) if back else (0, 1)
        reads.append(Row(outside.number(moved), opened.inputs[held + position], start, stride))
    rows = len(opened.graph.outputs) - held
    outputs, writes = list(node.outputs), []
    backs = _each(node, "scan_output_directions", rows)
    for position, axis in enumerate(_each(node, "scan_output_axes", rows)):
        number = held + position
        if not outputs[number]:
            continue
        result = rewriter.info(outputs[number])
        outputs[number] = _axis_back(rewriter, result, axis % len(result.dims), after)
        start, stride = (trips - 1, -1) if backs[position] else (0, 1)
        writes.append(Row(number, opened.graph.outputs[number].name, start, stride))
    body = Body(
        opened.graph, outside.shared(opened), tuple(carried), tuple(reads), tuple(writes),
        called=opened.called,
    )  # fmt: skip
    again = _repeat(replace(node, outputs=tuple(outputs)), outside, body, trips=trips)
    return [*before, again, *after]


def _scan_of_model(step: OpenBodies, rewriter: Rewriter, node: Node) -> list[Node] | None:
    """Opset 8 has another Scan, which goes through batches."""
    return _scan(step, rewriter, node) if rewriter.graph.opset > 8 else None


_OPENERS = {"If": _branches, "Loop": _loop, "Scan": _scan_of_model}


def _repeat(
    node: Node, outside: _Outside, body: Body, trips: int, limit: int = -1, test: str = ""
) -> Node:
    return Node(
        REPEAT, tuple(outside.names), node.outputs, node.name, INTERNAL_DOMAIN,
        attributes_of(trips=trips, limit=limit, test=test), bodies=(body,),
    )  # fmt: skip


def _dtypes(rewriter: Rewriter, node: Node, states: Sequence[TensorInfo]) -> list[str]:
    """Of the states, and of what a loop stacks besides."""
    rows = node.outputs[len(states) :]
    return [i.dtype for i in states] + [rewriter.info(n).dtype if n else "" for n in rows]


def _number(node: Node, position: int) -> int:
    return position if position < len(node.outputs) and node.outputs[position] else -1


def _rows(node: Node, body: Opened, first: int, inside: int) -> tuple[Row, ...]:
    """What is stacked, from the node's output `first` on: one row after the other."""
    names = [info.name for info in body.graph.outputs[inside:]]
    rows = [Row(_number(node, first + i), name, 0, 1) for i, name in enumerate(names)]
    return tuple(row for row in rows if row.outside >= 0)


def _around(rewriter: Rewriter) -> BodySurroundings:
    return BodySurroundings(rewriter.tensors, rewriter.constants, rewriter.graph.opsets)


def _reads_condition(body: Opened) -> bool:
    """Whether a body looks at the condition that it hands on."""
    result = body.graph.outputs[0].name
    readers = body.graph.consumers.get(body.inputs[1], ())
    return any(result not in reader.writes for reader in readers)


def _each(node: Node, attribute: str, count: int) -> tuple[int, ...]:
    return tuple(node.attribute(attribute) or (0,) * count)


def _axis_first(rewriter: Rewriter, info: TensorInfo, axis: int, nodes: list[Node]) -> str:
    """The tensor with an axis moved to the front."""
    if axis == 0:
        return info.name
    order = (axis, *(a for a in range(len(info.dims)) if a != axis))
    moved = rewriter.add_tensor(info.name, info.dtype, tuple(info.dims[a] for a in order))
    nodes.append(_transpose(info.name, moved, order))
    return moved


def _axis_back(rewriter: Rewriter, info: TensorInfo, axis: int, nodes: list[Node]) -> str:
    """A tensor of which `info` comes when its first axis is moved."""
    if axis == 0:
        return info.name
    others = [a for a in range(len(info.dims)) if a != axis]
    shape = tuple(info.dims[a] for a in (axis, *others))
    stacked = rewriter.add_tensor(info.name, info.dtype, shape)
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
    nodes.append(_transpose(stacked, info.name, order))
    return stacked


def _transpose(source: str, result: str, order: tuple[int, ...]) -> Node:
    attributes = attributes_of(perm=order)
    return Node("Transpose", (source,), (result,), result, attributes=attributes)
