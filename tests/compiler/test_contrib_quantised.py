"""Quantised operators of com.microsoft, natively, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from tests.compiler.model_builder import expected, random
from tests.compiler.node_checks import check_node, node_model
from tests.compiler.test_quantised_products import codes, number
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model

X = codes(2, 4, 6, 6)


def _bytes(name: str, array: NDArray[Any], scale: float, zero: int | None) -> dict[str, Any]:
    """A tensor with its scale and zero point."""
    shift = None if zero is None else number(zero, str(array.dtype))
    return {name: array, f"{name}_scale": number(scale), f"{name}_zero": shift}


A, B, Y = _bytes("a", X, 0.0213, 120), _bytes("b", codes(4, 1, 6), 0.0137, 3), {
    "y_scale": number(0.0331), "y_zero": number(100, "uint8")
}  # fmt: skip
SIGNED = _bytes("a", codes(3, 8, dtype="int8"), 0.02, None)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("QLinearAdd", {**A, **B, **Y}, {}),
        ("QLinearMul", {**A, **B, **Y}, {}),
        ("QLinearSigmoid", {**A, "y_scale": number(1 / 256), "y_zero": number(0, "uint8")}, {}),
        ("QLinearSigmoid", {**SIGNED, "y_scale": number(0.02), "y_zero": None}, {}),
        ("QLinearLeakyRelu", {**A, **Y}, {"alpha": 0.2}),
        ("QLinearSoftmax", {**A, **Y, "y_scale": number(1 / 256), "y_zero": number(0, "uint8")},
         {"axis": -1, "opset": 13}),
        ("QLinearAveragePool", {**A, **Y}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("QLinearAveragePool", {**A, **Y}, {"kernel_shape": [2, 2], "channels_last": 1}),
        ("QLinearGlobalAveragePool", {**A, **Y}, {}),
        ("QLinearConcat", {**Y, **A, **_bytes("b", codes(2, 1, 6, 6), 0.0137, 3)}, {"axis": 1}),
        ("QLinearWhere", {"c": X[:, :1] > 99, **A, **B, **Y}, {}),
    ],
)  # fmt: skip
def test_bytes_to_bytes(operator: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    """Bytes may differ by one where the number lies between two: in few places."""
    kind = TensorProto.INT8 if inputs is not None and _first(inputs) == "int8" else None
    kinds = {"y": kind or TensorProto.UINT8}
    model = node_model(operator, inputs, kinds=kinds, **attributes)
    executable = build(import_model(model), host_target())
    fed = {name: array for name, array in inputs.items() if array is not None}
    found, wanted = executable.run(fed)["y"], expected(model, fed)["y"]
    assert found.dtype == wanted.dtype and executable.report.host == 0
    apart = np.abs(found.astype(int) - wanted.astype(int))
    assert apart.max() <= 1 and (apart > 0).mean() <= 0.02, (apart > 0).mean()


def _first(inputs: dict[str, Any]) -> str:
    return str(next(a.dtype for a in inputs.values() if a is not None and a.dtype.kind in "iu"))


def test_products_of_bytes() -> None:
    a, b, bias = codes(3, 16), codes(16, 5, dtype="int8"), random(5)
    columns = np.abs(random(5)) / 50
    inputs: dict[str, Any] = {
        "x": random(3, 16), "b": b, "s": columns, "z": codes(5, dtype="int8"), "c": bias,
    }  # fmt: skip
    check_node("DynamicQuantizeMatMul", inputs, constants=["b", "s", "z", "c"])
    check_node("DynamicQuantizeMatMul", {**inputs, "z": None, "c": None}, constants=["b", "s"])
    inputs = {
        "a": a, "b": b, "as": number(0.02), "bs": columns, "az": number(120, "uint8"),
        "bz": codes(5, dtype="int8"), "c": bias,
    }  # fmt: skip
    check_node("MatMulIntegerToFloat", inputs, constants=["b", "bs", "bz", "c"])
    gemm = {
        "a": a, "as": number(0.02), "az": number(120, "uint8"), "b": b, "bs": number(0.01),
        "bz": number(-3, "int8"), "c": np.arange(5, dtype=np.int32) * 100,
        "ys": number(0.3), "yz": number(117, "uint8"),
    }  # fmt: skip
    check_node("QGemm", gemm, kinds={"y": TensorProto.UINT8}, constants=["b", "bs", "bz", "c"])
    floating = {**gemm, "ys": None, "yz": None}
    check_node("QGemm", floating, constants=["b", "bs", "bz", "c"])


def test_quantised_convolutions_with_channels_last() -> None:
    inputs = {
        "x": codes(1, 6, 6, 4), "xs": number(0.02), "xz": number(120, "uint8"),
        "w": codes(5, 4, 3, 3, dtype="int8"), "ws": number(0.01), "wz": number(0, "int8"),
        "ys": number(0.3), "yz": number(117, "uint8"),
    }  # fmt: skip
    names = ["w", "ws", "wz"]
    kinds = {"y": TensorProto.UINT8}
    check_node("QLinearConv", inputs, kinds=kinds, constants=names, channels_last=1)
