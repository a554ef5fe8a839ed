"""Casts between every pair of element types, and operators beside float32, as kernels alone."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model

Array = NDArray[Any]

DTYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16,
    "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def native(model: onnx.ModelProto, given: dict[str, Array]) -> dict[str, Array]:
    """What a model computes without the host."""
    executable = build(import_model(model), host_target())
    assert executable.report.host_nodes == ()
    return executable.run(given)


def referred(model: onnx.ModelProto, given: dict[str, Array]) -> dict[str, Array]:
    """What ONNX's reference computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        values = ReferenceEvaluator(model).run(None, given)
    return {info.name: np.asarray(v) for info, v in zip(model.graph.output, values, strict=True)}


def numbers(dtype: Any) -> Array:
    """Ends of a type and what lies between."""
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        found = [0, 1, 2, 100, ends.max, ends.max - 1, ends.min, ends.min + 1, ends.max // 3]
        return np.array([*found, *(number % 97 for number in range(7, 1000, 143))], dtype)
    if np.dtype(dtype).kind == "b":
        return np.arange(16) % 3 > 0
    odd = [np.nan, np.inf, -np.inf, 1e-8, -0.0, 65000.0, -70000.5, 3e9]
    with np.errstate(over="ignore"):
        return np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.9, -128.5, 255.5, *odd]).astype(dtype)


def cut(values: Array, dtype: Any) -> Array:
    """Floating numbers towards zero, to the nearest there is; what is no number is 0."""
    ends = np.iinfo(dtype)
    whole = (
        0 if np.isnan(v) else int(min(max(float(v), float(ends.min)), float(ends.max)))
        for v in values.astype(np.float64)
    )
    return np.array([min(max(v, int(ends.min)), int(ends.max)) for v in whole], dtype)


@pytest.mark.parametrize("source", DTYPES)
def test_every_cast_is_a_kernel(source: str) -> None:
    """Whole numbers wrap around; ONNX leaves open what becomes of floats that do not fit."""
    others = [name for name in DTYPES if name != source]
    nodes, x = [], numbers(DTYPES[source])
    for name in others:
        to = int(helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[name])))
        nodes.append(f"y_{name} = Cast<to={to}>(x)")
    ends = ", ".join(f"{name}[{x.size}] y_{name}" for name in others)
    model = model_of(f"agraph ({source}[{x.size}] x) => ({ends}) {{ {' '.join(nodes)} }}", opset=19)
    found, wanted = native(model, {"x": x}), referred(model, {"x": x})
    for name in others:
        value = wanted[f"y_{name}"]
        if np.dtype(DTYPES[name]).kind in "iu" and x.dtype.kind in "fV":
            value = cut(x, DTYPES[name])
        made = found[f"y_{name}"]
        assert made.dtype == DTYPES[name]
        if value.dtype.kind in "fV":
            value, made = value.astype(np.float64), made.astype(np.float64)
        np.testing.assert_array_equal(made, value, name)


@pytest.mark.parametrize("dtype", ["double", "uint64", "uint32"])
def test_operators_are_kernels(dtype: str) -> None:
    """Arithmetic, comparisons, choices and reductions."""
    kinds = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "GreaterOrEqual", "Equal")
    nodes = [f"y{n} = {kind}(a, b)" for n, kind in enumerate(kinds)]
    nodes += ["c = Less(a, b) y9 = Where(c, a, one)"]
    kinds = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
    nodes += [f"z{n} = {kind}(small, axes)" for n, kind in enumerate(kinds)]
    nodes += ["i = ArgMax<axis=1>(small)", "s = CumSum(small, axis)"]
    types = [*[dtype] * 6, *["bool"] * 3, dtype]
    ends = ", ".join(f"{kind}[4,6] y{n}" for n, kind in enumerate(types))
    ends += "".join(f", {dtype}[4,1] z{n}" for n in range(6))
    own = DTYPES[dtype]
    model = model_of(
        f"agraph ({dtype}[4,6] a, {dtype}[4,6] b, {dtype}[4,6] small) => ({ends}, int64[4,1] i, "
        f"{dtype}[4,6] s) {{ {' '.join(nodes)} }}",
        opset=18, axes=np.array([1]), axis=np.array(1), one=np.array([1], own),
    )  # fmt: skip
    a = np.resize(numbers(own), (4, 6))
    b = np.roll(a, 5)
    b[b == 0] = 7  # a quotient of whole numbers by zero is open
    small = (np.arange(24) * 5 % 23 + 1).reshape(4, 6).astype(own)
    given = {"a": a, "b": b, "small": small}
    found, wanted = native(model, given), referred(model, given)
    for name, value in wanted.items():
        exact = 0 if value.dtype.kind != "f" else 1e-14
        assert found[name].dtype == (own if name == "z5" else value.dtype), name
        np.testing.assert_allclose(found[name], value, rtol=exact, err_msg=name)


FEATURES = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
CLASSES = np.array([[0, 4, -7, 2], [1, 1, 3, 0], [-7, 2, 2, 4]])
TAKEN_APART: dict[str, tuple[str, dict[str, Array]]] = {
    "hardmax": ("(float[3,5,4] x) => (float[3,5,4] y) { y = Hardmax<axis=1>(x) }", {}),
    "eye": ("(float[3,5] x) => (int32[3,5] y) { y = EyeLike<dtype=6, k=1>(x) }", {}),
    "one-hot": (
        "(float[4] i) => (float[4,6] y) { y = OneHot(i, depth, values) }",
        {"depth": np.array(6), "values": np.array([2, 5], np.float32)},
    ),
    "norm": ("(float[3,5,4] x) => (float[3,5,4] y) { y = LpNormalization<axis=1>(x) }", {}),
    "crop": (
        "(float[3,5,4] x) => (float[2,8,4] y) { y = CenterCropPad<axes=[0,1]>(x, n) }",
        {"n": np.array([2, 8])},
    ),
    "reverse": (
        "(float[3,5,4] x, int64[3] n) => (float[3,5,4] y) "
        "{ y = ReverseSequence<batch_axis=0, time_axis=1>(x, n) }",
        {},
    ),
    "reverse in time": (
        "(float[3,5,4] x, int64[5] m) => (float[3,5,4] y) { y = ReverseSequence(x, m) }", {},
    ),
    "loss": (
        "(float[3,5,4] x, int64[3,4] t, float[5] w) => (float y) "
        "{ y = NegativeLogLikelihoodLoss<ignore_index=-7>(x, t, w) }",
        {},
    ),
    "losses": (
        "(float[3,5,4] x, int64[3,4] t) => (float[3,4] y, float[3,5,4] l) "
        '{ y, l = SoftmaxCrossEntropyLoss<reduction="none", ignore_index=-7>(x, t) }',
        {},
    ),
    "spectrum": (
        "(float[3,5,1] s) => (float[3,4,2] y) { y = DFT<onesided=1>(s, n) }",
        {"n": np.array(7)},
    ),
    "back": ("(float[3,5,2] c) => (float[3,5,2] y) { y = DFT<inverse=1>(c) }", {}),
    "across": (
        "(float[3,5,2] c) => (float[2,5,2] y) { y = DFT(c, n, axis) }",
        {"n": np.array(2), "axis": np.array(0)},
    ),
    "product": (
        "(float[5] v, float[3,5,4] x) => (float[3,4] y) { y = MatMul(v, x) }",
        {},
    ),
    "gemm": (
        "(float[3,4] a, float[4,5] b, float[3,1] d) => (float[3,5] y) "
        "{ y = Gemm<alpha=0.5, beta=0.25>(a, b, d) }",
        {},
    ),
    "any": ("(bool[3,5] f) => (bool[3,1] y) { y = ReduceMax(f, n) }", {"n": np.array([1])}),
    "mean": ("(int32[4,3] k) => (int32[4] y) { y = ReduceMean<keepdims=0>(k, n) }",
             {"n": np.array([1])}),
}  # fmt: skip
GIVEN: dict[str, Array] = {
    "x": FEATURES, "i": np.array([0.0, 5, -1, 9], np.float32), "n": np.array([5, 1, 3]),
    "m": np.array([3, 1, 2, 3, 1]), "t": CLASSES, "w": np.arange(1, 6, dtype=np.float32),
    "s": FEATURES[:, :, :1], "c": FEATURES[:, :, :2], "v": FEATURES[0, :, 0],
    "a": FEATURES[:, 0], "b": FEATURES[0].T.copy(), "d": FEATURES[:, :1, 0],
    "f": np.arange(15).reshape(3, 5) % 7 == 1,
    "k": np.array([[1, 2, 4], [-1, -2, -4], [0, 0, 1], [2**30, 5, -3]], np.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN_APART)
def test_what_is_taken_apart_is_kernels(name: str) -> None:
    text, weights = TAKEN_APART[name]
    model = model_of(f"agraph {text}", opset=20, **weights)
    given = {end.name: np.ascontiguousarray(GIVEN[end.name]) for end in model.graph.input}
    if name == "eye":
        given["x"] = FEATURES[:, :, 0].copy()
    found, wanted = native(model, given), referred(model, given)
    for output, value in wanted.items():
        assert (found[output].dtype, found[output].shape) == (value.dtype, value.shape)
        np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-5)


def test_frames_of_a_signal() -> None:
    text = """agraph (float[2,40,1] x) => (float[2,5,5,2] y)
    { y = STFT<onesided=1>(x, step, window, length) }"""
    window = np.hanning(8).astype(np.float32)
    model = model_of(text, window=window, step=np.array(8), length=np.array(8))
    x = np.random.default_rng(0).standard_normal((2, 40, 1)).astype(np.float32)
    frames = x.reshape(2, 5, 8) * window
    wanted = np.fft.rfft(frames)
    found = native(model, {"x": x})["y"]
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5)


def test_a_constant_output_of_16_bits() -> None:
    text = """agraph (float16[3] x) => (float16[3] c, float16[3] y) { y = Add(x, c) }"""
    model = model_of(text)
    value = np.array([1, 3, 5], np.float16)
    model.graph.initializer.append(numpy_helper.from_array(value, "c"))
    found = native(model, {"x": value})
    np.testing.assert_array_equal(found["c"], value)
    np.testing.assert_array_equal(found["y"], value + value)
