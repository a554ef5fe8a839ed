"""Quantised models of every opset, folded and not, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.model_builder import expected, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model

BYTES = [TensorProto.INT8, TensorProto.UINT8]
LATER = [TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4]
SHAPES: dict[str, tuple[int, ...]] = {"number": (), "axis": (6,), "blocks": (2, 6)}
PLACES: dict[str, dict[str, int]] = {
    "number": {}, "axis": {"axis": -1}, "blocks": {"axis": 0, "block_size": 2},
}  # fmt: skip


def form_cases() -> list[tuple[int, str, int, bool]]:
    """(opset, form of the scale, element type, whether there is a zero point)."""
    found = []
    for opset in (10, 11, 12, 13, 14, 17, 18, 19, 20, 21, 23, 25):
        forms = [f for f, since in zip(SHAPES, (10, 13, 21), strict=True) if opset >= since]
        kinds = [*BYTES, TensorProto.INT32, *(LATER if opset >= 21 else [])]
        found += [(opset, f, k, z) for f in forms for k in kinds for z in (False, True)]
    return [case for case in found if not (case[3] and case[2] == TensorProto.INT32)]


def _limits(kind: int) -> tuple[int, int]:
    return {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}.get(kind, (0, 100))


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, Any]], opset: int, **weights: Any
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, k, s) for n, (k, s) in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    arrays = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", values, [result], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10 if opset >= 21 else 8
    return model


def assert_equal(model: onnx.ModelProto, inputs: dict[str, NDArray[Any]]) -> None:
    found, wanted = build(import_model(model), host_target()).run(inputs), expected(model, inputs)
    assert found["y"].dtype == wanted["y"].dtype
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-6)


def test_weights_dequantised_at_compile_time_and_values_at_run_time() -> None:
    rng = np.random.default_rng(0)
    for opset, form, kind, with_zero in form_cases():
        dtype, (low, high) = helper.tensor_dtype_to_np_dtype(kind), _limits(kind)
        x = rng.integers(low, high + 1, (4, 6)).astype(dtype)
        scale = (rng.random(SHAPES[form]) + 0.1).astype(np.float32)
        zero = rng.integers(max(low, 0), 5, SHAPES[form]).astype(dtype)
        weights = {"scale": scale, **({"zero": zero} if with_zero else {})}
        node = helper.make_node("DequantizeLinear", ["x", *weights], ["t"], **PLACES[form])
        scaled = helper.make_node("Mul", ["t", "two"], ["y"])
        two = np.array([2.0], np.float32)
        folded = _model([node, scaled], {"two": (TensorProto.FLOAT, [1])}, opset, x=x, **weights)
        assert_equal(folded, {"two": two})
        if kind in (TensorProto.INT4, TensorProto.UINT4):
            continue  # onnxruntime's Python binding takes no arrays of these
        given = {"x": (kind, [4, 6]), "two": (TensorProto.FLOAT, [1])}
        assert_equal(_model([node, scaled], given, opset, **weights), {"x": x, "two": two})


def test_numbers_quantised_and_back_saturate() -> None:
    x = np.concatenate([random(4, 6).reshape(-1) * 5, [1e20, -1e20, 0.5, 1.5, 2.5, -0.5]])
    x = x.astype(np.float32).reshape(5, 6)
    rng = np.random.default_rng(1)
    for opset, form, kind, with_zero in form_cases():
        if form == "blocks" or kind == TensorProto.INT32 or not with_zero:
            continue
        scale = (rng.random(SHAPES[form]) + 0.1).astype(np.float32)
        zero = np.full(SHAPES[form], 3).astype(helper.tensor_dtype_to_np_dtype(kind))
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **PLACES[form]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **PLACES[form]),
        ]
        model = _model(nodes, {"x": (TensorProto.FLOAT, [5, 6])}, opset, scale=scale, zero=zero)
        few = x if kind in BYTES else np.clip(x, -9, 9)  # where onnxruntime wraps around
        assert_equal(model, {"x": few})


@pytest.mark.parametrize("kind", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"])
def test_weights_of_few_bits_multiply(kind: str) -> None:
    number = {"int4": 22, "uint4": 21, "float8_e4m3fn": 17, "float8_e5m2": 19}[kind]
    codes = np.random.default_rng(2).integers(0, 8, (32, 24))
    weight = codes.astype(helper.tensor_dtype_to_np_dtype(number))
    scale = np.full(24, 0.25, np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["weight", "scale"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = _model(nodes, {"x": (TensorProto.FLOAT, [5, 32])}, 21, weight=weight, scale=scale)
    executable, x = build(import_model(model), host_target()), random(5, 32)
    assert executable.report.host == 0
    found = executable.run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ (codes * 0.25).astype(np.float32), rtol=1e-4, atol=1e-5)
