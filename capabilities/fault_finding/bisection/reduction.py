"""The smallest model that still shows a fault: nodes are left out as long as it does.

What nodes read that are left out is an input of the smaller model, with the value that it has in
the large one by reference; what depends on no input, and what was known while the model was read
(shapes), is a weight. Nodes are left out in ever smaller parts (delta debugging: Zeller and
Hildebrandt, Simplifying and isolating failure-inducing input, 2002).

Large weights become numbers that the model computes itself, so that what is sent is small:

    w: 4 MiB of numbers      becomes      w = Reshape(Sin(Range(0, n) * frequency) * size, shape)

with the shape and the root mean square of the weight: constants are folded before anything else is
done with a model, so that kernels see a weight as before. A weight whose own numbers matter stays.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.compiler.graph.sources import source_name
from tilesmith.compiler.onnx.importer import Imported, import_model
from tilesmith.search_space.support.errors import TilesmithError

LARGE = 4096
"""Bytes above which a weight is worth it."""

_FREQUENCIES = 12.9898


def with_seeded_weights(small: "Small", shows: "Shows", seconds: float) -> "Small":
    """The same fault with as many large weights computed as still show it; the largest first."""
    end = time.monotonic() + seconds
    weights = [w for w in small.proto.graph.initializer if _is_large(w)]
    for weight in sorted(weights, key=lambda w: -math.prod(w.dims)):
        if time.monotonic() > end:
            break
        changed = _seeded(small, weight.name, len(small.seeded))
        if changed is not None and shows(changed):
            small = changed
    return small


def _is_large(weight: onnx.TensorProto) -> bool:
    return weight.data_type == onnx.TensorProto.FLOAT and 4 * math.prod(weight.dims) > LARGE


def _seeded(small: "Small", name: str, number: int) -> "Small | None":
    """A model with one weight computed, and what it should give; None where that is not known."""
    proto = onnx.ModelProto()
    proto.CopyFrom(small.proto)
    graph = proto.graph
    weight = next(w for w in graph.initializer if w.name == name)
    array = numpy_helper.to_array(weight)
    size = float(np.sqrt(np.mean(np.square(array.astype(np.float64))))) * math.sqrt(2)
    constants = {
        "from": np.float32(0), "to": np.float32(array.size), "by": np.float32(1),
        "frequency": np.float32(_FREQUENCIES + number), "size": np.float32(size),
        "shape": np.array(array.shape, np.int64),
    }  # fmt: skip
    own = {what: f"{name}.{what}" for what in (*constants, "places", "angles", "sines", "flat")}
    range_nodes = [
        helper.make_node("Range", [own["from"], own["to"], own["by"]], [own["places"]]),
        helper.make_node("Mul", [own["places"], own["frequency"]], [own["angles"]]),
        helper.make_node("Sin", [own["angles"]], [own["sines"]]),
        helper.make_node("Mul", [own["sines"], own["size"]], [own["flat"]]),
        helper.make_node("Reshape", [own["flat"], own["shape"]], [name]),
    ]
    kept = [w for w in graph.initializer if w.name != name]
    kept += [numpy_helper.from_array(np.asarray(v), own[what]) for what, v in constants.items()]
    nodes = [*range_nodes, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    wanted = _values(proto, small)
    if wanted is None:
        return None
    return replace(small, proto=proto, wanted=wanted, seeded=(*small.seeded, name))


def _values(proto: onnx.ModelProto, small: "Small") -> dict[str, Any] | None:
    try:
        values = Evaluator(import_model(proto)).values(small.inputs, small.wanted)
    except TilesmithError:
        return None
    finite = all(np.isfinite(np.asarray(v, np.float64)).all() for v in values.values())
    return {name: np.asarray(values[name]) for name in small.wanted} if finite else None


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
