"""Quantised operators, natively and to the last bit, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tests.compiler.node_checks import check_node
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, extract_tasks
from tilesmith.compiler.onnx.importer import import_model

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}


def codes(*shape: int, dtype: str = "uint8", seed: int = 0) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng((seed, *shape))
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def number(value: float, dtype: str = "float32") -> NDArray[Any]:
    return np.array(value, dtype)


def _check(operator: str, inputs: dict[str, Any], result: str, **stated: Any) -> None:
    kinds = {"y": KINDS[result], "z": TensorProto.UINT8}
    check_node(operator, inputs, domain=stated.pop("domain", ""), kinds=kinds, **stated)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_numbers_become_bytes_and_bytes_numbers(dtype: str) -> None:
    opset = 21 if dtype.endswith("16") else 13
    x = np.concatenate([random(4, 6).reshape(-1) * 90, [1e9, -1e9, 0.5, 1.5, -2.5, 0.25]])
    x = x.astype(np.float32).reshape(5, 6)
    kinds = {"y": int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))}
    for scale, axis in ((number(0.5), 1), (np.array([0.5, 1, 3, 0.1, 7, 2], np.float32), -1)):
        zero = np.full(scale.shape, 3, dtype)
        quantise = {"x": x, "s": scale, "z": zero}
        stated = {"axis": axis, "domain": "", "version": opset}
        check_node("QuantizeLinear", quantise, kinds=kinds, constants=["s", "z"], **stated)
        check_node("QuantizeLinear", quantise, kinds=kinds, **stated)
        back = {"x": codes(5, 6, dtype=dtype), "s": scale, "z": zero}
        check_node("DequantizeLinear", back, constants=["s", "z"], **stated)


def test_blocks_have_scales_of_their_own() -> None:
    inputs = {"x": codes(6, 4), "s": np.abs(random(3, 4)), "z": codes(3, 4, seed=1)}
    check_node("DequantizeLinear", inputs, domain="", version=21, axis=0, block_size=2)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-3, -4.0])
def test_scales_found_at_run_time(scale: float) -> None:
    x = np.abs(random(5, 7)) * np.float32(scale)
    _check("DynamicQuantizeLinear", {"x": x}, "uint8", outputs=("y", "s", "z"))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_of_products_are_exact(dtype: str) -> None:
    a, b = codes(3, 700), codes(700, 5, dtype=dtype)
    rows = {
        "a": a,
        "b": b,
        "p": number(7, "uint8"),
        "q": number(-3 if dtype == "int8" else 3, dtype),
    }
    _check("MatMulInteger", rows, "int32", constants=["b", "q"])
    _check("MatMulInteger", rows, "int32")
    columns = {**rows, "q": codes(5, dtype=dtype, seed=1)}
    _check("MatMulInteger", columns, "int32", constants=["b", "q"])
    _check("MatMulInteger", {"a": a.reshape(1, 3, 700), "b": b}, "int32")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_products(dtype: str) -> None:
    low = number(-3 if dtype == "int8" else 130, dtype)
    inputs = {
        "a": codes(2, 3, 40), "as": number(0.02), "az": number(120, "uint8"),
        "b": codes(40, 5, dtype=dtype), "bs": number(0.013), "bz": low, "ys": number(0.2),
        "yz": number(117, "uint8"),
    }  # fmt: skip
    _check("QLinearMatMul", inputs, "uint8", constants=["b", "bs", "bz"])
    columns = {**inputs, "bs": np.abs(random(5)) / 50, "bz": np.full(5, low)}
    _check("QLinearMatMul", columns, "uint8", constants=["b", "bs", "bz"])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_convolutions(dtype: str) -> None:
    low = number(-3 if dtype == "int8" else 130, dtype)
    plain = {"x": codes(1, 4, 7, 7), "w": codes(6, 4, 3, 3, dtype=dtype), "p": number(9, "uint8"),
             "q": number(0, dtype)}  # fmt: skip
    stated = {"pads": [1, 1, 1, 1], "strides": [2, 2], "constants": ["w", "q"]}
    _check("ConvInteger", plain, "int32", **stated)
    inputs = {
        "x": plain["x"], "xs": number(0.02), "xz": number(120, "uint8"), "w": plain["w"],
        "ws": np.abs(random(6)) / 50, "wz": np.full(6, low if dtype == "uint8" else 0, dtype),
        "ys": number(0.3), "yz": number(117, "uint8"),
        "b": np.array([100, -2000, 3, 0, 70000, -5], np.int32),
    }  # fmt: skip
    if dtype == "uint8":
        inputs |= {"ws": number(0.013), "wz": low}
    stated["constants"] = ["w", "ws", "wz", "b"]
    _check("QLinearConv", inputs, "uint8", **stated)
    group = {**inputs, "w": codes(4, 1, 3, 3, dtype=dtype), "b": None}
    group |= {"ws": number(0.01), "wz": low if dtype == "uint8" else number(0, dtype)}
    _check("QLinearConv", group, "uint8", group=4, constants=["w", "ws", "wz"])


def test_what_is_moved_between_quantised_operators_is_moved_natively() -> None:
    """A quantised model of onnxruntime's: bytes are pooled, joined, expanded and turned."""
    model = model_of(
        "g (float[1, 4, 6, 6] x) => (float[3, 3, 3, 8] y) {"
        "q = QuantizeLinear(x, s, z) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(q)"
        "c = Concat<axis = 1>(p, p) r = Reshape(c, cut) e = Expand(r, whole)"
        "t = Transpose<perm = [0, 2, 3, 1]>(e) y = DequantizeLinear(t, s, z) }",
        s=np.float32(0.1), z=np.uint8(3), cut=np.array([1, 8, 3, 3]),
        whole=np.array([3, 8, 3, 3]),
    )  # fmt: skip
    x = {"x": random(1, 4, 6, 6)}
    executable = build(import_model(model), host_target())
    assert_close(executable.run(x), expected(model, x))
    assert executable.report.host == 0
    keys = [task.workload.key for task in extract_tasks(import_model(model), host_target())]
    moved = [key for key in keys if key.split()[0] in ("transpose", "concat")]
    assert moved and all("dtype=uint8" in key for key in moved), keys


def test_bytes_that_are_read_with_another_scale_than_they_were_written_with() -> None:
    """Quantised by (s, z), taken for numbers by (r, w) or by the same, and quantised once more."""
    for scale, zero in ((0.07, 131), (0.02, 131), (0.07, 90)):
        model = model_of(
            """g (uint8[4,8] x) => (uint8[4,5] y) {
                a = DequantizeLinear (x, xs, xz)
                b = DequantizeLinear (c, cs)
                t = MatMul (a, b)
                q = QuantizeLinear (t, s, z)
                u = DequantizeLinear (q, r, w)
                y = QuantizeLinear (u, ys, yz)
            }""",
            c=codes(8, 5, dtype="int8"), xs=number(0.02), xz=number(120, "uint8"),
            cs=number(0.01), s=number(0.07), z=number(131, "uint8"),
            r=number(scale), w=number(zero, "uint8"), ys=number(0.05), yz=number(110, "uint8"),
        )  # fmt: skip
        x = {"x": codes(4, 8, seed=3)}
        found = build(import_model(model), host_target()).run(x)["y"].astype(int)
        np.testing.assert_allclose(found, expected(model, x)["y"].astype(int), atol=2)
