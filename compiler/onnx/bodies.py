"""Bodies of Loop, Scan and If as graphs: a serialised graph and what is known outside, imported.

Invariants: what the body reads of the model around it is an input of the graph (`Opened.captured`)
or, where its value is known, a constant, the very same array; every output is a tensor of its own.
Bodies that differ in nothing but names are one graph (`OpenedBefore`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilesmith.compiler.graph.graph import Graph, Node, Subgraph, TensorInfo, view
from tilesmith.compiler.onnx.captures import free_names, nameless
from tilesmith.compiler.onnx.inference.inference import DTYPE_NAMES, DTYPE_NUMBERS
from tilesmith.search_space.expressions.dtypes import STORED
from tilesmith.search_space.support.errors import ModelError


@dataclass(frozen=True)
class BodySurroundings:
    """What is known where a body stands.

    Attributes:
        tensors: every tensor's info by name.
        constants: known values by name.
        opsets: of the model.
    """

    tensors: Mapping[str, TensorInfo]
    constants: Mapping[str, NDArray[Any]]
    opsets: Sequence[tuple[str, int]]


Reader = Callable[[onnx.ModelProto], Graph]


@dataclass(frozen=True)
class Opened:
    """A body as a graph.

    Attributes:
        graph: its inputs are those of the body, then what it captures.
        inputs: names of the body's own inputs, in order.
        captured: names of those that are tensors outside.
        outside: what these are called outside.
        called: what nodes of the model are called here that have other names in the graph.
    """

    graph: Graph
    inputs: tuple[str, ...]
    captured: tuple[str, ...]
    outside: tuple[str, ...]
    called: Mapping[str, str] = field(default_factory=dict)


class OpenedBefore:
    """Bodies that were opened, by all that their graphs depend on."""

    def __init__(self) -> None:
        self.graphs: dict[object, tuple[Opened | None, Sequence[str], object]] = {}
        """Each with its nodes' names, and with what must live as long as it is looked up."""


def opened_body(
    body: Subgraph,
    given: Sequence[TensorInfo],
    results: Sequence[str],
    around: BodySurroundings,
    read: Reader,
    before: OpenedBefore,
) -> Opened | None:
    """The graph of a body; None where something of it is not known before running.

    Args:
        given: type and shape of each of its inputs.
        results: dtype of each of its outputs, for those it does not state itself; "" if unknown.
        read: makes a graph of a model (`import_model`, which in turn asks of loops' bodies here).
        before: an equal body's graph is taken from it.
    """
    proto = onnx.GraphProto()
    proto.ParseFromString(body.serialised)
    if (len(proto.input), len(proto.output)) != (len(given), len(results)):
        return None
    if not all(info.known for info in given):
        return None
    types = [_stated(value) for value in proto.output]
    types = [a or b for a, b in zip(types, results, strict=True)]
    if not all(dtype in STORED for dtype in types):
        return None
    captured = list(dict.fromkeys(free_names(proto)))
    if not all(name in around.tensors and around.tensors[name].known for name in captured):
        return None
    weights = {name: around.constants[name] for name in captured if name in around.constants}
    read_types = [(around.tensors[name].dtype, around.tensors[name].shape) for name in captured]
    shape, nodes = nameless(proto)
    key = (
        shape, tuple((info.dtype, info.shape) for info in given), tuple(types),
        tuple(zip(read_types, map(_identity, map(weights.get, captured)), strict=True)),
    )  # fmt: skip
    if key not in before.graphs:
        opened = _opened(proto, given, types, captured, around, read)
        before.graphs[key] = opened, nodes, weights
    opened, names, _ = before.graphs[key]
    if opened is None or names == nodes:
        return opened and replace(opened, outside=_varying(captured, weights))
    return replace(
        opened,
        outside=_varying(captured, weights),
        called={a: b for a, b in zip(names, nodes, strict=True) if a != b},
    )


def _varying(captured: Sequence[str], weights: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """What a body reads of the model around it and has no known value."""
    return tuple(name for name in captured if name not in weights)


_SMALL = 64
"""Bytes up to which constants are compared by their values, others by where they are."""


def _identity(value: NDArray[Any] | None) -> object:
    """Equal for constants that are surely the same; None for none."""
    if value is None or value.nbytes > _SMALL or value.dtype.hasobject:
        return value if value is None else id(value)
    return value.tobytes()


def _opened(
    proto: onnx.GraphProto,
    given: Sequence[TensorInfo],
    types: Sequence[str],
    captured: Sequence[str],
    around: BodySurroundings,
    read: Reader,
) -> Opened | None:
    """What `opened_body` does, of a body that is new."""
    own = [value.name for value in proto.input]
    declared = [value.name for value in proto.output]
    weights = {name: around.constants[name] for name in captured if name in around.constants}
    varying = _varying(captured, weights)
    del proto.input[:]
    proto.input.extend(_typed(replace(i, name=n)) for n, i in zip(own, given, strict=True))
    proto.input.extend(_typed(around.tensors[name]) for name in varying)
    proto.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    del proto.output[:]
    proto.output.extend(
        helper.make_tensor_value_info(name, DTYPE_NUMBERS[dtype], None)
        for name, dtype in dict(zip(declared, types, strict=True)).items()
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in around.opsets]
    try:
        graph = read(helper.make_model(proto, opset_imports=imports))
    except ModelError:
        return None
    if not all(info.known for info in graph.outputs):
        return None
    same = {name: value for name, value in weights.items() if name in graph.constants}
    return Opened(
        _with_own_outputs(graph.with_(constants={**graph.constants, **same}), declared),
        tuple(own), varying, varying,
    )  # fmt: skip


def loop_body(
    node: Node, around: BodySurroundings, read: Reader, before: OpenedBefore
) -> Opened | None:
    """The body of a `Loop`; None where something of it is not known before running."""
    states = [around.tensors[name] for name in node.inputs[2:]]
    rows = node.outputs[len(states) :]
    given = (TensorInfo("", "int64", ()), TensorInfo("", "bool", ()), *states)
    held = [info.dtype for info in states]
    stacked = [around.tensors[name].dtype if name in around.tensors else "" for name in rows]
    results = ("bool", *held, *stacked)
    return opened_body(node.attribute("body"), given, results, around, read, before)


def keeps_shapes(body: Opened, first: int, states: Sequence[TensorInfo]) -> bool:
    """Whether states, from the output `first` of a body on, come out as they went in."""
    given = body.graph.outputs[first : first + len(states)]
    alike = [(a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(given, states, strict=False)]
    return len(given) == len(states) and all(alike)


def endless(body: Opened, condition: NDArray[Any] | None) -> bool:
    """Whether a loop's condition, this at first, is true in all iterations."""
    if condition is None or not condition.reshape(-1)[0]:
        return False
    result = body.graph.outputs[0].name
    while (producer := body.graph.producers.get(result)) is not None:
        if producer.kind != "view" and not producer.is_onnx("Identity"):
            return False
        result = producer.inputs[0]
    value = body.graph.constants.get(result)
    return result == body.inputs[1] or (value is not None and bool(value.reshape(-1)[0]))


def loop_outputs(
    node: Node, around: BodySurroundings, read: Reader, before: OpenedBefore
) -> dict[str, TensorInfo]:
    """What a `Loop` gives: states that keep their shapes, rows of a number that is known."""
    body = loop_body(node, around, read, before)
    states = [around.tensors[name] for name in node.inputs[2:]]
    if body is None or not keeps_shapes(body, 1, states):
        return {}
    results = dict(zip(node.outputs, states, strict=False))
    condition = around.constants.get(node.input(1)) if node.input(1) else np.array(True)
    trips = around.constants.get(node.input(0))
    if trips is not None and trips.size == 1 and endless(body, condition):
        count = max(0, int(trips.reshape(-1)[0]))
        for name, row in zip(
            node.outputs[len(states) :], body.graph.outputs[1 + len(states) :], strict=False
        ):
            results[name] = replace(row, shape=(count, *row.dims))
    return {name: replace(info, name=name) for name, info in results.items() if name}


def _stated(value: onnx.ValueInfoProto) -> str:
    """The element type that a file states, "" if it is none of a tensor."""
    return DTYPE_NAMES.get(value.type.tensor_type.elem_type, "")


def _typed(info: TensorInfo) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(info.name, DTYPE_NUMBERS[info.dtype], info.dims)


def _with_own_outputs(graph: Graph, declared: Sequence[str]) -> Graph:
    """Outputs that are no inputs, constants or one another: each a view of what it is declared."""
    tensors, nodes, outputs = dict(graph.tensors), list(graph.nodes), []
    for position, name in enumerate(declared):
        own = f"{name}.out{position}"
        while own in tensors:
            own += "."
        tensors[own] = replace(tensors[name], name=own)
        nodes.append(view(name, own))
        outputs.append(tensors[own])
    return graph.with_(nodes=tuple(nodes), tensors=tensors, outputs=tuple(outputs))
