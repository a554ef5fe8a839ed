"""The smallest model that still shows a fault: nodes are left out as long as it does.

What nodes read that are left out is an input of the smaller model, with the value that it has in
the large one by reference; what depends on no input, and what was known while the model was read
(shapes), is a weight. Nodes are left out in ever smaller parts (delta debugging: Zeller and
Hildebrandt, Simplifying and isolating failure-inducing input, 2002).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.compiler.graph.sources import source_name
from tilesmith.compiler.onnx.importer import Imported

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Small:
    """A part of a model, by itself.

    Attributes:
        proto: the model.
        inputs: values of its inputs.
        wanted: what its outputs should be.
        nodes: numbers of the nodes in the whole.
        minimal: whether it is known that none of them can be left out.
        seeded: weights whose numbers are computed by the model itself.
    """

    proto: onnx.ModelProto
    inputs: dict[str, Any]
    wanted: dict[str, Any]
    nodes: tuple[int, ...]
    minimal: bool = True
    seeded: tuple[str, ...] = ()


Shows = Callable[[Small], bool]


class Whole:
    """A model that parts are taken from.

    Args:
        proto: weights in it.
        imported: the same as read: what was known then.
        values: of every tensor that is computed, by reference; what is missing cannot be an input.
    """

    def __init__(
        self, proto: onnx.ModelProto, imported: Imported, values: Mapping[str, Any]
    ) -> None:
        self.proto = proto
        self.nodes = list(proto.graph.node)
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.known = imported.values
        self.values = values
        self._constant = self._constants()

    def named(self, sources: Iterable[str]) -> tuple[int, ...]:
        """The nodes of these names."""
        wanted = set(sources)
        return tuple(
            number
            for number, node in enumerate(self.nodes)
            if source_name(node.name, node.output) in wanted
        )

    def before(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """The nodes and those that write what they read, Constants left out."""
        chosen = set(numbers)
        read = {name for number in chosen for name in _reads(self.nodes[number])}
        return tuple(
            n for n, node in enumerate(self.nodes) if n in chosen or read & set(node.output)
        )

    def part(self, numbers: Sequence[int]) -> Small | None:
        """The model of some nodes; None where a value that it needs is not known."""
        nodes = [self.nodes[number] for number in sorted(numbers)]
        written = {name for node in nodes for name in node.output if name}
        inputs: dict[str, Any] = {}
        weights: dict[str, onnx.TensorProto] = {}
        for name in dict.fromkeys(n for node in nodes for n in _reads(node)):
            if name in written:
                continue
            if name in self.weights:
                weights[name] = self.weights[name]
                continue
            value = self.values.get(name, self.known.get(name))
            if not isinstance(value, np.ndarray | np.generic):
                return None
            array = np.asarray(value)
            if name in self._constant or name in self.known:
                weights[name] = numpy_helper.from_array(array, name)
            else:
                inputs[name] = array
        wanted = {name: self.values[name] for name in self._ends(numbers, written)}
        if not inputs or not wanted:
            return None
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        graph = helper.make_graph(
            nodes, self.proto.graph.name or "reduced",
            [_declared(name, value) for name, value in inputs.items()],
            [_declared(name, value) for name, value in wanted.items()],
            list(weights.values()),
        )  # fmt: skip
        proto.graph.CopyFrom(graph)
        return Small(proto, inputs, wanted, tuple(sorted(numbers)))

    def _ends(self, numbers: Iterable[int], written: set[str]) -> list[str]:
        """What others read of it, and what the caller gets."""
        inside = set(numbers)
        read = {
            name
            for number, node in enumerate(self.nodes)
            if number not in inside
            for name in _reads(node)
        }
        read |= {value.name for value in self.proto.graph.output}
        return [
            name
            for name in written & read
            if isinstance(self.values.get(name), np.ndarray | np.generic)
        ]

    def _constants(self) -> set[str]:
        """Tensors that no input has a part in."""
        given = {value.name for value in self.proto.graph.input} - self.weights.keys()
        varying = set(given)
        for node in self.nodes:
            if not varying.isdisjoint(_reads(node)) or node.op_type.startswith("Random"):
                varying.update(node.output)
        return {name for node in self.nodes for name in node.output} - varying


def smallest(
    whole: Whole, starts: Iterable[Sequence[int]], shows: Shows, seconds: float
) -> Small | None:
    """The smallest part that shows the fault; None if none does.

    Args:
        starts: parts that may show it, the likeliest first.
        seconds: how long smaller ones are looked for; a first one is, however long it takes.
    """
    end = time.monotonic() + seconds
    first = True
    known: dict[tuple[int, ...], Small | None] = {}

    def tried(numbers: Sequence[int]) -> Small | None:
        key = tuple(sorted(set(numbers)))
        if key not in known:
            if not key or (not first and time.monotonic() > end):
                return None
            part = whole.part(key)
            known[key] = part if part is not None and shows(part) else None
            what = "does not show it" if known[key] is None else "shows it"
            _LOG.info("a model of %d of %d nodes %s", len(key), len(whole.nodes), what)
        return known[key]

    best = next((small for start in starts if (small := tried(start)) is not None), None)
    first = False
    if best is None:
        return None
    size = max(1, len(best.nodes) // 2)
    while True:
        smaller = _without_one(best, size, tried)
        if smaller is not None:
            best, size = smaller, min(size, max(1, len(smaller.nodes) // 2))
        elif size == 1 or time.monotonic() > end:
            return replace(best, minimal=time.monotonic() <= end)
        else:
            size = max(1, size // 2)


def _without_one(
    best: Small, size: int, tried: Callable[[Sequence[int]], Small | None]
) -> Small | None:
    """The part without some `size` nodes in a row that it does not need."""
    for start in range(0, len(best.nodes), size):
        rest = (*best.nodes[:start], *best.nodes[start + size :])
        if rest and (small := tried(rest)) is not None:
            return small
    return None


def _reads(node: onnx.NodeProto) -> list[str]:
    """What a node reads, what its bodies read of outside too."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inside = {name for inner in graph.node for name in inner.output}
            inside |= {value.name for value in graph.input}
            inside |= {tensor.name for tensor in graph.initializer}
            read = (name for inner in graph.node for name in _reads(inner))
            names += [name for name in read if name not in inside]
    return names


def _declared(name: str, value: Any) -> onnx.ValueInfoProto:
    array = np.asarray(value)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )
