"""Random valid models of quantised operators, one node after the other, with what each comes to.

    graph = random_graph(np.random.default_rng((seed, number)))
    graph.model()       ONNX
    graph.feeds         the inputs that it was made with
    graph.reference()   what each node alone gives, by onnxruntime without fusions

A node is kept only if onnxruntime computes it alone on the values that are there by then, so a
graph is valid by construction, and its values are those of the standard's operators one by one,
whatever either side fuses. `graph.reference(rng)` rounds some of every quantised tensor to the next
byte: how far results are from those is what may differ between two right runtimes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
Values = dict[str, Array]

MICROSOFT = "com.microsoft"
OPSETS = (11, 13, 17, 19, 21, 23)
WIDE = ("uint8", "int8", "int16", "uint16")
"""Element types of quantised tensors."""


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A model in onnxruntime, without fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _info(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


@dataclass(frozen=True)
class _Step:
    """A node, and itself as a model."""

    node: onnx.NodeProto
    session: onnxruntime.InferenceSession


@dataclass
class Graph:
    """A model as it grows.

    Attributes:
        rng: what draws.
        opset: ONNX's.
        constants, feeds: initialisers and inputs.
        values: every tensor's value on these inputs.
        codings: scale and zero point that a tensor of bytes was made with, by their names.
        empty: whether tensors of no elements are kept.
    """

    rng: np.random.Generator
    opset: int
    empty: bool = False
    constants: Values = field(default_factory=dict)
    feeds: Values = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    codings: dict[str, tuple[str, str]] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    # -- building -------------------------------------------------------------------------------
    def input(self, value: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.values[name] = value
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def value(self, name: str) -> Array:
        return self.constants[name] if name in self.constants else self.values[name]

    def add(
        self,
        operator: str,
        *inputs: str,
        results: int | Sequence[bool] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Append a node; () where onnxruntime does not compute it.

        Args:
            results: how many, or which of its outputs it has.
        """
        which = [True] * results if isinstance(results, int) else results
        names = tuple(f"t{len(self.steps)}_{n}" if has else "" for n, has in enumerate(which))
        if any(value == [] for value in attributes.values()):  # windows over no axis
            return ()
        node = helper.make_node(operator, inputs, names, names[0], domain=domain, **attributes)
        names = tuple(name for name in names if name)
        try:
            session = plain_session(self._model([node], names, dict.fromkeys(inputs)))
            step = _Step(node, session)
            found = self._run(step, self.values)
        except Exception:  # whatever onnxruntime has against it
            return ()
        if any(not self._kept(value) for value in found.values()):
            return ()
        self.steps.append(step)
        self.values.update(found)
        self.read.update(name for name in inputs if name)
        return names

    def _kept(self, value: Any) -> bool:
        plain = isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
        plain = plain and value.dtype.name[:6] not in ("float8", "float4")  # which few take
        return plain and (value.size > 0 or self.empty) and finite(value)

    def one(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The only result of a node; "" where there is none."""
        found = self.add(operator, *inputs, **attributes)
        return found[0] if found else ""

    def pick(self, accept: Callable[[Array], bool]) -> str:
        """One of the tensors there are, the late ones more often; "" where none will do."""
        known = [name for name, value in self.values.items() if accept(value)]
        if not known:
            return ""
        weights = np.arange(1, len(known) + 1) ** 2.0
        return str(self.rng.choice(known, p=weights / weights.sum()))

    # -- what it comes to -----------------------------------------------------------------------
    def _model(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], wanted: Mapping[str, Any]
    ) -> onnx.ModelProto:
        inputs = [_info(n, self.values[n]) for n in wanted if n and n not in self.constants]
        weights = [
            numpy_helper.from_array(self.constants[n], n) for n in wanted if n in self.constants
        ]
        results = [
            _info(n, self.values[n]) if n in self.values
            else helper.make_empty_tensor_value_info(n) for n in outputs
        ]  # fmt: skip
        graph = helper.make_graph(nodes, "quantised", inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    @property
    def outputs(self) -> list[str]:
        """What no node reads."""
        return [n for n in self.values if n not in self.read and n not in self.feeds]

    @property
    def given(self) -> Values:
        """The inputs that a node reads."""
        return {name: value for name, value in self.feeds.items() if name in self.read}

    def model(self) -> onnx.ModelProto:
        used = {name: None for step in self.steps for name in step.node.input if name}
        wanted = {name: None for name in used if name in self.constants or name in self.given}
        return self._model([step.node for step in self.steps], self.outputs, wanted)

    @staticmethod
    def _run(step: _Step, values: Mapping[str, Array]) -> Values:
        given = {i.name: values[i.name] for i in step.session.get_inputs()}
        names = [name for name in step.node.output if name]
        return dict(zip(names, step.session.run(names, given), strict=True))

    def reference(
        self,
        rng: np.random.Generator | None = None,
        moved: Callable[[Array, np.random.Generator], Array] | None = None,
    ) -> Values:
        """Every tensor, node by node.

        Args:
            rng: draws how values on the way are moved; None leaves them.
            moved: moves a value; None: three in ten bytes are the next ones.
        """
        values = dict(self.feeds)
        for step in self.steps:
            found = self._run(step, values)
            if rng is not None:
                found = {name: (moved or _neighbours)(value, rng) for name, value in found.items()}
            values.update(found)
        return values


def finite(value: Array) -> bool:
    return value.dtype.kind != "f" or bool(np.all(np.abs(value.astype(np.float64)) < 1e6))


def _neighbours(value: Array, rng: np.random.Generator) -> Array:
    if not value.ndim or value.dtype.name not in WIDE:
        return value
    limits = np.iinfo(value.dtype)
    moved = value.astype(np.int64) + rng.choice([0, -1, 1], value.shape, p=[0.7, 0.15, 0.15])
    return np.asarray(np.clip(moved, limits.min, limits.max).astype(value.dtype))


def _bytes_or_floats(bytes_in: float) -> Callable[[Graph], object]:
    """An input of bytes or, as often as `bytes_in` leaves it, of float32."""
    shapes = [(1, 4, 6, 6), (2, 8, 5, 5), (1, 3, 12), (4, 8), (2, 3, 8), (1, 2, 4, 4, 4)]

    def drawn(graph: Graph) -> object:
        rng = graph.rng
        if graph.feeds:
            shape = next(iter(graph.feeds.values())).shape
        else:
            shape = shapes[int(rng.choice(len(shapes), p=[0.3, 0.2, 0.1, 0.2, 0.15, 0.05]))]
        if rng.random() < bytes_in:
            low, high = (0, 256) if rng.random() < 0.6 else (-128, 128)
            dtype = np.uint8 if low == 0 else np.int8
            return graph.input(rng.integers(low, high, shape).astype(dtype))
        floats = (rng.standard_normal(shape) * rng.choice([0.5, 1, 4])).astype(np.float32)
        return graph.input(floats)

    return drawn


def random_graph(
    rng: np.random.Generator,
    steps: Sequence[Callable[[Graph], object]],
    bytes_in: float = 0.25,
    draw: Callable[[Graph], object] | None = None,
    opsets: Sequence[int] = OPSETS,
) -> Graph:
    """A model of four to fourteen nodes.

    Args:
        steps: what may be appended.
        bytes_in: the share of inputs that are bytes.
        draw: adds an input; None: bytes and float32 of one shape.
        opsets: those it may be of.
    """
    graph = Graph(rng, int(rng.choice(opsets)))
    for _ in range(int(rng.integers(1, 3))):
        (draw or _bytes_or_floats(bytes_in))(graph)
    wanted = int(rng.integers(4, 15))
    for _ in range(10 * wanted):
        steps[int(rng.integers(len(steps)))](graph)
        if len(graph.steps) >= wanted:
            break
    return graph
