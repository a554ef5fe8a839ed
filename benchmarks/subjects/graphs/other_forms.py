"""A model said otherwise, as exporters and people say them: what it computes stays the same.

    model, more = said_otherwise(graph, rng)    more: inputs that the forms added

Each form is a law that holds of any model: some nodes in a row may stand in a function of the
model's own, in a branch that is taken, in the body of a loop or scan whose turns all do the same; a
tensor may go through a sequence or an optional value; an initialiser may be a node or an input; a
dimension may have a name in place of a number. Forms are put on top of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.subjects.graphs.quantised_graphs import Array, Graph, Values

_INT64 = onnx.TensorProto.INT64
_BOOL = onnx.TensorProto.BOOL


def reads(node: onnx.NodeProto) -> set[str]:
    """The names from outside that a node uses, bodies included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
            own = {v.name for v in [*body.input, *body.initializer]}
            inner: set[str] = set()
            for each in body.node:
                inner |= reads(each)
                own |= set(each.output)
            inner |= {v.name for v in body.output}
            names |= inner - own
    return names


def renamed(nodes: Iterable[onnx.NodeProto], names: dict[str, str]) -> list[onnx.NodeProto]:
    """Copies of nodes that use other names, in bodies too."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        for attribute in copy.attribute:
            for body in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
                inner = renamed(body.node, names)
                del body.node[:]
                body.node.extend(inner)
                for value in [*body.output, *body.input, *body.initializer]:
                    value.name = names.get(value.name, value.name)
        copies.append(copy)
    return copies


@dataclass
class Said:
    """A model while it is said otherwise.

    Attributes:
        model, values: the model, and the value of every tensor by name.
        more: inputs that a form added.
        rng: what draws.
        count: how many names were made.
    """

    model: onnx.ModelProto
    values: Values
    more: Values
    rng: np.random.Generator
    count: int = 0

    @property
    def opset(self) -> int:
        return self.model.opset_import[0].version

    def name(self, stem: str = "f") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def info(self, name: str, value: Array) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, kind, value.shape)

    def constant(self, value: Any, dtype: Any) -> str:
        """An initialiser, or an input of the model."""
        name, array = self.name("k"), np.asarray(value, dtype)
        self.values[name] = array
        if self.rng.random() < 0.3:
            self.model.graph.input.append(self.info(name, array))
            self.more[name] = array
        else:
            self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def segment(self) -> tuple[int, int, list[str], list[str]]:
        """Some nodes in a row: from, to, the names they read, and those that are read of them."""
        nodes, outputs = self.model.graph.node, {v.name for v in self.model.graph.output}
        first = int(self.rng.integers(len(nodes)))
        last = min(len(nodes), first + int(self.rng.integers(1, 6)))
        inside = {name for node in nodes[first:last] for name in node.output if name}
        needed: dict[str, None] = {}
        for node in nodes[first:last]:
            needed.update(dict.fromkeys(sorted(reads(node) - inside)))
        after = set(outputs).union(*(reads(node) for node in nodes[last:]))
        results = sorted(inside & after)
        plain = all(self.values[name].dtype != object for name in results)
        return first, last, list(needed), results if plain else []

    def container(self, stem: str) -> str:
        """A name for a sequence or an optional value, which no tensor stands for."""
        name = self.name(stem)
        self.values[name] = np.empty(0, object)
        return name

    def replace(self, first: int, last: int, nodes: Sequence[onnx.NodeProto]) -> None:
        rest = [*self.model.graph.node[:first], *nodes, *self.model.graph.node[last:]]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in rest]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)

    def body(self, first: int, last: int, results: Sequence[str]) -> tuple[list[Any], list[str]]:
        """The nodes with names of their own, and what `results` are called there."""
        nodes = self.model.graph.node[first:last]
        own = {name: self.name("b") for node in nodes for name in node.output if name}
        for name, new in own.items():
            self.values[new] = self.values[name]
        return renamed(nodes, own), [own[name] for name in results]


def function(said: Said) -> None:
    """Nodes in a function of the model's own."""
    first, last, needed, results = said.segment()
    if not results:
        return
    nodes, inner = said.body(first, last, results)
    name = said.name("part")
    parts = helper.make_function("own", name, needed, inner, nodes, list(said.model.opset_import))
    said.model.functions.append(parts)
    if "own" not in {entry.domain for entry in said.model.opset_import}:
        said.model.opset_import.append(helper.make_opsetid("own", 1))
        for other in said.model.functions:
            other.opset_import.append(helper.make_opsetid("own", 1))
    said.replace(first, last, [helper.make_node(name, needed, results, domain="own")])


def branch(said: Said) -> None:
    """Nodes in a branch that is taken, beside one that gives zeros."""
    first, last, _, results = said.segment()
    if not results:
        return
    nodes, inner = said.body(first, last, results)
    taken = bool(said.rng.random() < 0.5)
    condition = said.constant(taken, bool)
    zeros = [said.name("z") for _ in results]
    values = [said.values[name] for name in results]
    tensors = [numpy_helper.from_array(np.zeros_like(value)) for value in values]
    other = [
        helper.make_node("Constant", [], [zero], value=tensor)
        for zero, tensor in zip(zeros, tensors, strict=True)
    ]
    for zero, value in zip(zeros, values, strict=True):
        said.values[zero] = value
    bodies = [
        helper.make_graph(each, f"body{said.count}", [], list(map(said.info, names, values)))
        for each, names in ((nodes, inner), (other, zeros))
    ]
    one, two = bodies if taken else bodies[::-1]
    node = helper.make_node("If", [condition], results, then_branch=one, else_branch=two)
    said.replace(first, last, [node])


def loop(said: Said) -> None:
    """Nodes in a loop whose turns all give the same, carried or stacked."""
    first, last, _, results = said.segment()
    if not results or said.opset < 11:  # where a loop has to carry something
        return
    nodes, inner = said.body(first, last, results)
    turns = int(said.rng.integers(1, 4))
    carried = [bool(said.rng.random() < 0.5) for _ in results]
    turn, going, still = (said.name("turn") for _ in range(3))
    states = [
        (r, i) for r, i, is_carried in zip(results, inner, carried, strict=True) if is_carried
    ]
    stacks = [
        (r, i) for r, i, is_carried in zip(results, inner, carried, strict=True) if not is_carried
    ]
    inputs = [helper.make_tensor_value_info(turn, _INT64, []),
              helper.make_tensor_value_info(going, _BOOL, [])]  # fmt: skip
    inputs += [said.info(said.name("s"), said.values[r]) for r, _ in states]
    outputs = [helper.make_tensor_value_info(still, _BOOL, [])]
    outputs += [said.info(i, said.values[r]) for r, i in [*states, *stacks]]
    nodes = [*nodes, helper.make_node("Identity", [going], [still])]
    body = helper.make_graph(nodes, f"body{said.count}", inputs, outputs)
    begin = [said.constant(np.zeros_like(said.values[r]), said.values[r].dtype) for r, _ in states]
    stacked = [said.name("y") for _ in stacks]
    for name, (r, _) in zip(stacked, stacks, strict=True):
        said.values[name] = np.stack([said.values[r]] * turns)
    trips = said.constant(turns, np.int64)
    condition = said.constant(True, bool) if said.rng.random() < 0.5 else ""
    made = helper.make_node(
        "Loop", [trips, condition, *begin], [*(r for r, _ in states), *stacked], body=body
    )
    picks = _picks(said, stacked, [r for r, _ in stacks], turns, 0)
    said.replace(first, last, [made, *picks])


def _picks(said: Said, stacked: Sequence[str], names: Sequence[str], turns: int,
           axis: int) -> list[onnx.NodeProto]:  # fmt: skip
    """One turn's result of each stack."""
    picked = []
    for stack, name in zip(stacked, names, strict=True):
        place = said.constant(int(said.rng.integers(-turns, turns)), np.int64)
        picked.append(helper.make_node("Gather", [stack, place], [name], axis=axis))
    return picked


def scan(said: Said) -> None:
    """Nodes in a scan over copies of a tensor they read."""
    first, last, needed, results = said.segment()
    read = [name for name in needed if said.values[name].dtype != object]
    if not results or not read or said.opset < 9:  # where a scan is over batches
        return
    nodes, inner = said.body(first, last, results)
    source = str(said.rng.choice(read))
    value = said.values[source]
    turns = int(said.rng.integers(1, 4))
    axis = int(said.rng.integers(value.ndim + 1))
    one, many, each = said.name("one"), said.name("many"), said.name("each")
    said.values[one] = np.expand_dims(value, axis)
    said.values[many] = np.concatenate([said.values[one]] * turns, axis)
    said.values[each] = value
    where = said.constant([axis], np.int64)
    before = [
        helper.make_node("Unsqueeze", [source, where], [one])
        if said.opset >= 13
        else helper.make_node("Unsqueeze", [source], [one], axes=[axis]),
        helper.make_node("Concat", [one] * turns, [many], axis=axis),
    ]
    outputs = [said.info(i, said.values[r]) for r, i in zip(results, inner, strict=True)]
    body = helper.make_graph(
        renamed(nodes, {source: each}), f"body{said.count}", [said.info(each, value)], outputs
    )
    stacked = [said.name("y") for _ in results]
    for name, result in zip(stacked, results, strict=True):
        said.values[name] = np.stack([said.values[result]] * turns)
    made = helper.make_node(
        "Scan", [many], stacked, body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[int(said.rng.integers(2))],
    )  # fmt: skip
    said.replace(first, last, [*before, made, *_picks(said, stacked, results, turns, 0)])


def _through(said: Said, between: Callable[[str, str], list[onnx.NodeProto]]) -> None:
    """Put nodes between a tensor and one node that reads it."""
    nodes = said.model.graph.node
    place = int(said.rng.integers(len(nodes)))
    read = [n for n in nodes[place].input if n and said.values[n].dtype.kind in "fiub"]
    if not read:
        return
    name, new = str(said.rng.choice(read)), said.name("v")
    said.values[new] = said.values[name]
    reader = renamed([nodes[place]], {name: new})[0]
    said.replace(place, place + 1, [*between(name, new), reader])


def sequence(said: Said) -> None:
    """A tensor in a sequence, and out of it."""
    if said.opset < 11:
        return
    many = said.container("q")
    count = int(said.rng.integers(1, 4))
    place = said.constant(int(said.rng.integers(-count, count)), np.int64)
    _through(said, lambda name, new: [
        helper.make_node("SequenceConstruct", [name] * count, [many]),
        helper.make_node("SequenceAt", [many, place], [new]),
    ])  # fmt: skip


def optional(said: Said) -> None:
    """A tensor as an optional value, and out of it."""
    if said.opset >= 15:
        held = said.container("o")
        _through(said, lambda name, new: [
            helper.make_node("Optional", [name], [held]),
            helper.make_node("OptionalGetElement", [held], [new]),
        ])  # fmt: skip


def weight(said: Said) -> None:
    """An initialiser as a node, or as an input with a value of its own."""
    weights = said.model.graph.initializer
    if not weights:
        return
    place = int(said.rng.integers(len(weights)))
    tensor = onnx.TensorProto.FromString(weights[place].SerializeToString())
    if said.rng.random() < 0.5:
        known = {value.name for value in said.model.graph.input}
        if tensor.name not in known:
            said.model.graph.input.append(said.info(tensor.name, said.values[tensor.name]))
        return
    if tensor.name in {value.name for value in said.model.graph.input}:
        return
    del weights[place]
    said.replace(0, 0, [helper.make_node("Constant", [], [tensor.name], value=tensor)])


def dimension(said: Said) -> None:
    """A dimension of the inputs with a name in place of a number."""
    for value in said.model.graph.input:
        if value.name in said.more:
            continue
        for each in value.type.tensor_type.shape.dim:
            if each.HasField("dim_value") and said.rng.random() < 0.5:
                each.dim_param = f"n{each.dim_value}"
    if said.rng.random() < 0.5:
        for value in said.model.graph.output:
            value.type.tensor_type.ClearField("shape")


FORMS: tuple[Callable[[Said], None], ...] = (
    function, branch, loop, scan, sequence, optional, weight, dimension,
)  # fmt: skip


def said_otherwise(graph: Graph, rng: np.random.Generator) -> tuple[onnx.ModelProto, Values]:
    """A graph's model in one to four other forms, and the inputs that these added."""
    said = Said(graph.model(), {**graph.constants, **graph.values}, {}, rng)
    for _ in range(int(rng.integers(1, 5))):
        FORMS[int(rng.integers(len(FORMS)))](said)
    return said.model, said.more
