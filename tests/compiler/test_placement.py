"""Random graphs run inside their planned arena: no tensor is overwritten while it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.model_builder import random
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.graph.graph_text import graph_text
from tilesmith.compiler.host.reference import run_node, run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.placement import device_tensors, place
from tilesmith.compiler.recipe.program import view_of
from tilesmith.search_space.expressions.dtypes import to_numpy


class RandomGraph:
    """Draws an ONNX graph over images of 1 x C x 3 x 2."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels = {"x": 4, "z": 2}

    def pick(self, channels: int | None = None) -> str:
        names = [n for n, c in self.channels.items() if channels in (None, c)]
        return self.draw(st.sampled_from(names))

    def add(self, operator: str, inputs: list[str], sizes: list[int], **attributes: Any) -> None:
        outputs = [f"t{len(self.channels) + i}" for i in range(len(sizes))]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        self.channels.update(zip(outputs, sizes, strict=True))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def step(self) -> None:
        kind = self.draw(
            st.sampled_from(["unary", "add", "conv", "concat", "split", "slice", "pool", "reshape"])
        )
        x = self.pick()
        c = self.channels[x]
        match kind:
            case "unary":
                operator = self.draw(st.sampled_from(["Relu", "Sigmoid", "Identity", "Mish"]))
                self.add(operator, [x], [c])
            case "add":
                self.add("Add", [x, self.pick(c)], [c])
            case "conv":
                out = self.draw(st.integers(1, 4))
                self.add("Conv", [x, self.constant(random(out, c, 1, 1) / 2)], [out])
            case "concat":
                parts = [x, *(self.pick() for _ in range(self.draw(st.integers(1, 2))))]
                self.add("Concat", parts, [sum(self.channels[p] for p in parts)], axis=1)
            case "split" if c > 1:
                first = self.draw(st.integers(1, c - 1))
                sizes = self.constant(np.array([first, c - first]))
                self.add("Split", [x, sizes], [first, c - first], axis=1)
            case "slice" if c > 1:
                start = self.draw(st.integers(0, c - 1))
                ends = [self.constant(np.array([v])) for v in (start, c, 1)]
                self.add("Slice", [x, *ends], [c - start])
            case "reshape":
                shape = self.constant(np.array([1, c, 3, 2]))
                self.add("Reshape", [x, shape], [c])
            case _:
                self.add("MaxPool", [x], [c], kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def model(self) -> onnx.ModelProto:
        def value(name: str) -> onnx.ValueInfoProto:
            shape = [1, self.channels[name], 3, 2]
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        made = [name for name in self.channels if name not in ("x", "z")]
        outputs = {made[-1], *self.draw(st.sets(st.sampled_from(made), max_size=2))}
        graph = helper.make_graph(
            self.nodes, "g", [value("x"), value("z")], [value(n) for n in sorted(outputs)],
            self.weights,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    graph = RandomGraph(draw)
    for _ in range(draw(st.integers(1, 14))):
        graph.step()
    return graph.model()


def run_in_arena(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run with every device tensor where the plan puts it, in an arena of NaNs."""
    sizes = {name: graph.info(name).nbytes for name in device_tensors(graph)}
    placement = place(graph, sizes)
    assert placement.nbytes >= placement.peak_alive
    arena = np.full(placement.nbytes, 255, dtype=np.uint8)
    plain: dict[str, Any] = dict(graph.constants)

    def array(name: str) -> np.ndarray:
        info = graph.info(name)
        return view_of(arena, placement.offsets[name], to_numpy(info.dtype), info.dims)

    def write(name: str, value: np.ndarray) -> None:
        if name in placement.offsets:
            array(name)[...] = value
        else:
            plain[name] = value

    def read(name: str) -> np.ndarray:
        return array(name).copy() if name in placement.offsets else plain[name]

    for name, value in inputs.items():
        write(name, value)
    for node in graph.nodes:
        if node.kind in ("kernel", "host"):
            results = run_node(graph, node, {name: read(name) for name in node.reads})
            for name, value in results.items():
                write(name, value)
    return {info.name: read(info.name) for info in graph.outputs}


@settings(max_examples=60)
@given(models())
def test_planned_memory_keeps_what_is_needed(model: onnx.ModelProto) -> None:
    imported = import_model(model)
    inputs = {"x": random(1, 4, 3, 2), "z": random(1, 2, 3, 2)}
    wanted = run_reference(imported, inputs)
    graph = prepared(imported)
    verify(graph)
    found = run_in_arena(graph, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(
            found[name], value, rtol=2e-4, atol=1e-5, err_msg=graph_text(graph)
        )
