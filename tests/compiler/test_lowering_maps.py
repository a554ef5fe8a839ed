"""Maps of whole numbers and of bits, inverse functions, bounds and powers known at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS

RNG = np.random.default_rng(0)
NUMBERS = (RNG.standard_normal((4, 37)) * 2).astype(np.float32)
SMALL = np.clip(NUMBERS / 4, -0.99, 0.99)


def whole(dtype: str, low: int = -100, high: int = 100) -> Any:
    return RNG.integers(0 if dtype.startswith("u") else low, high, (4, 37)).astype(dtype)


def run(operator: str, inputs: list[Any], opset: int = 22, **attributes: Any) -> Any:
    """What our kernels compute, and the model."""
    names = [f"x{number}" for number in range(len(inputs))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    given = [
        helper.make_tensor_value_info(name, DTYPE_NUMBERS[value.dtype.name], value.shape)
        for name, value in zip(names, inputs, strict=True)
    ]
    kind = DTYPE_NUMBERS[inputs[0].dtype.name]
    result = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "maps", given, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    executable = build(import_model(model), host_target())
    assert executable.report.host == 0, executable.report.host_nodes
    return executable.run(dict(zip(names, inputs, strict=True)))["y"], model


def peer(model: onnx.ModelProto, inputs: list[Any]) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {f"x{number}": value for number, value in enumerate(inputs)})[0]


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Sinh", [NUMBERS], {}),
        ("Cosh", [NUMBERS], {}),
        ("Asin", [SMALL], {}),
        ("Acos", [SMALL], {}),
        ("Atan", [NUMBERS], {}),
        ("Asinh", [NUMBERS], {}),
        ("Acosh", [np.abs(NUMBERS) + 1], {}),
        ("Atanh", [SMALL], {}),
        ("Shrink", [NUMBERS], {"lambd": 0.7, "bias": 0.2}),
        ("Clip", [NUMBERS, np.array(-1, np.float32), np.array(0.5, np.float32)], {}),
        ("Clip", [whole("int64"), np.array(-7), np.array(50)], {}),
        ("Pow", [np.abs(NUMBERS), SMALL], {}),
        ("Pow", [NUMBERS, whole("int64", -3, 4)], {}),
        ("Mod", [whole("int32"), whole("int32", 1)], {"fmod": 1}),
        ("Mod", [whole("int64"), whole("int64", -9, -1)], {"fmod": 1}),
        ("Relu", [whole("int32")], {}),
        ("Relu", [whole("int8")], {}),
        ("BitwiseAnd", [whole("int32"), whole("int32")], {}),
        ("BitwiseOr", [whole("uint8"), whole("uint8")], {}),
        ("BitwiseXor", [whole("int64"), whole("int64")], {}),
        ("BitwiseNot", [whole("int16")], {}),
        ("BitwiseNot", [whole("uint8")], {}),
        ("BitShift", [whole("uint8"), whole("uint8", 0, 8)], {"direction": "LEFT"}),
    ],
)
def test_maps(operator: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    found, model = run(operator, inputs, **attributes)
    np.testing.assert_allclose(found, peer(model, inputs), rtol=2e-6, atol=1e-7)


def test_swiglu() -> None:
    gate, value = NUMBERS.astype(np.float64), SMALL.astype(np.float64)
    found, _ = run("SwiGLU", [NUMBERS, SMALL], opset=28, alpha=1.5)
    np.testing.assert_allclose(found, gate / (1 + np.exp(-1.5 * gate)) * value, rtol=1e-6)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_shifts_further_than_there_are_bits(dtype: str, direction: str) -> None:
    """BitShift 28: what the sign's extension alone leaves."""
    width = 8 * np.dtype(dtype).itemsize
    amounts = [0, 1, width - 1, width, width + 3] + ([] if dtype[0] == "u" else [-1])
    x = np.array([5, 100, 1, 0] + ([] if dtype[0] == "u" else [-1, -100]), dtype)[:, None]
    y = np.array(amounts, dtype)[None]
    found, _ = run("BitShift", [x, y], opset=28, direction=direction)
    beyond = (y < 0) | (y >= width)
    safe = np.where(beyond, 0, y).astype(dtype)
    if direction == "LEFT":
        expected = np.where(beyond, 0, np.left_shift(x, safe))
    else:
        expected = np.where(beyond, np.where(x < 0, -1, 0), np.right_shift(x, safe))
    np.testing.assert_array_equal(found, expected.astype(dtype))


def test_bounds_that_are_not_numbers() -> None:
    x = np.array([np.nan, -np.inf, np.inf, 0], np.float32)
    found, _ = run("Clip", [x, np.array(-1, np.float32), np.array(1, np.float32)])
    np.testing.assert_array_equal(found, [np.nan, -1, 1, 0])


def test_powers_at_the_ends() -> None:
    """As C's pow."""
    x = np.array([0, -0.0, -2, -2, 2, np.nan, np.inf, 1, -np.inf], np.float32)
    y = np.array([0, -1, 3, 0.5, -20, 0, -1, np.nan, 3], np.float32)
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    np.testing.assert_allclose(run("Pow", [x, y])[0], expected, rtol=1e-5)


def test_accelerators_leave_them_to_the_host() -> None:
    from tilesmith.search_space.hardware.target import load_target

    for operator, value in (("Atan", NUMBERS), ("BitwiseNot", whole("int32"))):
        _, model = run(operator, [value])
        executable = build(import_model(model), load_target("trn1"))
        assert executable.report.host == 1
        expected = peer(model, [value])
        np.testing.assert_allclose(executable.run({"x0": value})["y"], expected, rtol=1e-6)
