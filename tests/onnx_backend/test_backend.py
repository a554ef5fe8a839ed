"""`tilesmith.onnx_backend` as a backend of ONNX: prepare, run_model, run_node, supports_device."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

from tilesmith import onnx_backend
from tilesmith.search_space.support.errors import ModelError

X = np.array([[-1.0, 2.0, -3.0]], dtype=np.float32)


def relu(*shape: int | str) -> onnx.ModelProto:
    """y = max(x, 0)"""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_it_is_a_backend_of_onnx() -> None:
    assert issubclass(onnx_backend.TilesmithBackend, Backend)
    assert isinstance(onnx_backend.prepare(relu(1, 3)), BackendRep)
    assert onnx_backend.is_compatible(relu(1, 3))


def test_models_are_prepared_once_and_run_by_native_code() -> None:
    prepared = onnx_backend.prepare(relu(1, 3))
    (compiled,) = prepared.compiled
    assert compiled.report.default == 1
    assert compiled.report.host == 0
    for given in ([X], {"x": X}, X):
        outputs = prepared.run(given)
        np.testing.assert_array_equal(outputs[0], np.maximum(X, 0))
        np.testing.assert_array_equal(outputs["y"], np.maximum(X, 0))
    assert prepared.compiled == (compiled,)


def test_open_shapes_are_compiled_as_they_come() -> None:
    prepared = onnx_backend.prepare(relu("n", 3))
    assert prepared.compiled == ()
    for rows in (2, 5, 2):
        (y,) = prepared.run([np.tile(X, (rows, 1))])
        np.testing.assert_array_equal(y, np.tile(np.maximum(X, 0), (rows, 1)))
    assert [executable.inputs[0].shape for executable in prepared.compiled] == [(2, 3), (5, 3)]


def test_a_model_is_run_in_one_call() -> None:
    (y,) = onnx_backend.run_model(relu(1, 3), [X])
    np.testing.assert_array_equal(y, np.maximum(X, 0))


def test_a_node_is_run_by_itself() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = onnx_backend.run_node(node, [X, np.float32(1.5)])
    np.testing.assert_array_equal(y, np.minimum(X, np.float32(1.5)))
    node = helper.make_node("Softmax", ["x"], ["y"])  # of all axes together, before opset 13
    x = np.ones((2, 2, 2), dtype=np.float32)
    info = [(np.float32, (2, 2, 2))]
    (y,) = onnx_backend.run_node(node, {"x": x}, "CPU", info, opset_version=11)
    np.testing.assert_allclose(y, x / 4, rtol=1e-6)


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device("abacus")
    with pytest.raises(ModelError, match="device 'CUDA'; 'CPU' can"):
        onnx_backend.prepare(relu(1, 3), "CUDA")


def test_too_many_inputs_are_refused_by_count() -> None:
    with pytest.raises(ModelError, match="2 inputs are given to 'relu', which takes 1: x"):
        onnx_backend.run_model(relu(1, 3), [X, X])


def test_what_is_inferred_has_to_be_enough() -> None:
    node = helper.make_node("OptionalGetElement", ["x"], ["y"])
    (y,) = onnx_backend.run_node(node, [X])
    np.testing.assert_array_equal(y, X)


def test_what_is_given_takes_the_place_of_an_initialiser() -> None:
    model = relu(1, 3)
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (1, 3)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(X, "w"))
    prepared = onnx_backend.prepare(model)
    np.testing.assert_array_equal(prepared.run([X])[0], X + X)
    np.testing.assert_array_equal(prepared.run([X, 3 * X])[0], X + 3 * X)
    np.testing.assert_array_equal(prepared.run([X])[0], X + X)
