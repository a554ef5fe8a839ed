"""Small ONNX models for the tests of the compiler, and the comparison every one of them ends in."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model

Arrays = Mapping[str, NDArray[Any]]


def model_of(text: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """A model from ONNX's text form of a graph, with weights given as arrays."""
    graph = parser.parse_graph(text)
    for name, value in weights.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def inputs_of(graph: Graph, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Random inputs that fit a graph."""
    return {
        info.name: random(*info.dims, seed=seed + i).astype(info.dtype)
        for i, info in enumerate(graph.inputs)
    }


def expected(model: onnx.ModelProto, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_close(found: Arrays, wanted: Arrays, tolerance: float = 2e-5) -> None:
    """Equal names and shapes; equal values, relative to the largest."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype, name
        if value.dtype.kind in "iub":
            np.testing.assert_array_equal(found[name], value, err_msg=name)
            continue
        scale = max(1e-6, float(np.abs(value).max())) if value.size else 1.0
        error = float(np.abs(found[name].astype(np.float64) - value).max()) if value.size else 0.0
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"


def check(
    model: onnx.ModelProto,
    transform: Callable[[Graph], Graph] = lambda graph: graph,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    tolerance: float = 2e-5,
) -> Graph:
    """Import, transform, run in numpy, compare with onnxruntime; returns the transformed graph.

    The transformation has to be settled after one application: a second returns the same object.
    """
    graph = transform(import_model(model, shapes))
    verify(graph)
    assert transform(graph) is graph
    inputs = inputs_of(graph)
    assert_close(run_reference(graph, inputs), expected(model, inputs), tolerance)
    return graph


def operators(graph: Graph) -> collections.Counter[str]:
    """How often each operator (or kernel's workload key) occurs."""
    return collections.Counter(n.workload.key if n.workload else n.operator for n in graph.nodes)
