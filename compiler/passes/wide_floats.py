"""Models of 16-bit floats as models of float32, which kernels and all other passes are made for."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import AttributeValue, Graph, Node, Subgraph, TensorInfo, kernel
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.expressions.dtypes import COMPUTED, to_numpy
from tilesmith.search_space.workloads.workload import Workload, shape_text

NARROW = ("float16", "bfloat16")

_NUMBERS = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name an element type."""


@dataclass(frozen=True)
class WidenFloats(Pass):
    """What a model computes in 16 bits is computed in float32; what it casts is rounded.

        y: float16 = MatMul(x: float16, w)                  before
        x1: float32 = Kernel(elementwise to_float32)(x)     after
        y1: float32 = MatMul(x1, w as float32)
        y: float16 = Kernel(elementwise to_float32)(y1)

    The caller sees the model's own types. Where a precision is asked for, kernels are narrow again;
    so are those of nodes in bfloat16 inside a model that is float32 to its caller (`Graph.narrow`).

    Contract: a graph of ONNX operators in and out; values equal up to the roundings of 16 bits,
    overflow left out; out, no operator reads or writes 16-bit floats. A model with bodies, with
    updates or whose ends have no known shape stays as it is.
    """

    name = "widen-floats"

    def run(self, graph: Graph) -> Graph:
        ends = [
            info
            for info in (*graph.inputs, *graph.outputs)
            if any(narrow in info.dtype for narrow in NARROW)  # or a sequence of such
        ]
        odd = any(_is_odd(node) for node in graph.nodes) or graph.updates
        if odd or not all(info.known and info.elements for info in ends):
            return graph
        if not any(map(_is_narrow, graph.tensors.values())):
            return graph
        return _Widening(graph).run()


def _is_narrow(info: TensorInfo) -> bool:
    return info.dtype in NARROW


def _is_odd(node: Node) -> bool:
    """Whether a node has a body, or looks at bits."""
    bodies = any(isinstance(value, Subgraph) for _, value in node.attributes)
    return bool(bodies or node.captures or node.bodies) or node.operator == "BitCast"


class _Widening:
    """A graph on its way."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = {
            name: replace(info, dtype=COMPUTED) if _is_narrow(info) else info
            for name, info in graph.tensors.items()
        }
        self.nodes: list[Node] = []
        self._renamed: dict[str, str] = {}
        inside = not any(map(_is_narrow, (*graph.inputs, *graph.outputs)))
        self._narrow = {node for node in graph.nodes if inside and self._in_bf16(node)}
        self._given: set[str] = set()
        """Narrow outputs that a cast of the model's gives."""

    def run(self) -> Graph:
        """The caller's tensors keep their type, and have a float32 one beside them for the nodes.
        One may be an input and an output, an output twice, or a constant."""
        graph, computed = self.graph, self.graph.producers.keys()
        ends = {i.name: i for i in (*graph.inputs, *graph.outputs) if _is_narrow(i)}
        for name, info in ends.items():
            self.tensors[name] = info
            if name in computed or name in graph.consumers:
                self._renamed[name] = self._fresh(info, COMPUTED)
        for name in [n for n in self._renamed if n not in computed and n not in graph.constants]:
            self._cast(name, self._renamed[name])
        for node in graph.nodes:
            self._node(node)
        for name in [n for n in self._renamed if n in computed and n not in self._given]:
            self._cast(self._renamed[name], name)
        return graph.with_(
            nodes=tuple(self.nodes), tensors=self.tensors, constants=dict(self._constants(ends)),
            narrow=frozenset(name for node in self._narrow for name in node.sources),
        )  # fmt: skip

    def _in_bf16(self, node: Node) -> bool:
        """Whether a node computes bfloat16 of bfloat16."""
        types = {self.graph.info(name).dtype for name in (*node.reads, *node.writes)}
        return "bfloat16" in types and COMPUTED not in types

    def _constants(self, ends: Collection[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        for name, value in self.graph.constants.items():
            if not _is_narrow(self.graph.info(name)):
                yield name, value
                continue
            if name in ends:
                yield name, value
            if name not in ends or name in self._renamed:
                yield self._renamed.get(name, name), value.astype(np.float32)

    def _fresh(self, info: TensorInfo, dtype: str) -> str:
        name = f"{info.name}.{dtype}"
        while name in self.tensors:
            name += "'"
        self.tensors[name] = TensorInfo(name, dtype, info.shape)
        return name

    def _cast(self, source: str, result: str) -> None:
        before, after = self.tensors[source], self.tensors[result]
        parameters = {
            "shape": shape_text(before.dims) if before.dims else "scalar",
            "expression": "to_float32(x0)",
            "types": before.dtype,
        }
        workload = Workload.of("elementwise", parameters, dtype=after.dtype)
        self.nodes.append(kernel(workload, (source,), result, result))

    def _named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self._renamed.get(name, name) for name in names)

    def _node(self, node: Node) -> None:
        inputs, outputs = self._named(node.inputs), self._named(node.outputs)
        attributes = tuple((name, _widened(name, value)) for name, value in node.attributes)
        changed = replace(node, inputs=inputs, outputs=outputs, attributes=attributes)
        if self._leaves(node):  # what is bfloat16 no longer was rounded to it
            rounded = self._fresh(self.graph.info(node.inputs[0]), "bfloat16")
            self._cast(inputs[0], rounded)
            self._cast(rounded, outputs[0])
            return
        if not self._rounds(node):
            self.nodes.append(changed)
            return
        info = self.graph.info(node.outputs[0])
        exact, rounded = self._fresh(info, COMPUTED), node.outputs[0]
        if rounded in self._renamed:
            self._given.add(rounded)
        else:
            rounded = self._fresh(info, info.dtype)
        self.nodes.append(replace(changed, outputs=(exact,)))
        self._cast(exact, rounded)
        self._cast(rounded, outputs[0])

    def _leaves(self, node: Node) -> bool:
        """Whether a node casts to float32 what another computes in bfloat16."""
        if not node.is_onnx("Cast", "CastLike"):
            return False
        result = self.graph.info(node.outputs[0])
        maker = self.graph.producers.get(node.inputs[0])
        return maker in self._narrow and result.dtype == COMPUTED and bool(result.known)

    def _rounds(self, node: Node) -> bool:
        """Whether a node casts numbers of another type to a narrow one."""
        if not node.is_onnx("Cast", "CastLike"):
            return False
        source, result = (self.graph.info(n[0]) for n in (node.inputs, node.outputs))
        return (
            _is_narrow(result)
            and source.dtype != result.dtype
            and bool(result.known and result.elements)
        )


def _widened(name: str, value: AttributeValue) -> AttributeValue:
    if name in _TYPES and isinstance(value, int) and value in _NUMBERS:
        return int(onnx.TensorProto.FLOAT)
    narrow = [to_numpy(dtype) for dtype in NARROW]
    if isinstance(value, np.ndarray) and value.dtype in narrow:
        return value.astype(np.float32)
    return value
