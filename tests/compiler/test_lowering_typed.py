"""Comparisons, logic, choices, casts and whole numbers as kernels, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import expected, inputs_of, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5], np.float32)

TYPED = {
    "choice": ("c = Greater(x, z) y = Where(c, x, z)", "float", 1),
    "choice of numbers": ("c = Less(x, v) y = Where(c, one, x)", "float", 1),
    "two numbers": ("c = Less(x, v) y = Where(c, three, four)", "int64", 1),
    "comparisons": ("a = LessOrEqual(x, z) b = GreaterOrEqual(x, v) y = Xor(a, b)", "bool", 1),
    "logic": ("a = Greater(x, z) b = Equal(x, x) c = Or(a, b) d = Not(c) y = And(d, a)", "bool", 2),
    "tests": ("a = IsNaN(x) b = IsInf(s) c = And(a, b) y = Not(c)", "bool", 1),
    "infinities": ("y = IsInf<detect_negative=0>(s)", "bool", None),
    "casts": (
        "a = Cast<to=7>(z) b = Cast<to=1>(a) c = Cast<to=9>(b) y = Cast<to=6>(c)", "int32", 1,
    ),
    "whole numbers": (
        "a = Cast<to=7>(x) b = Mul(a, big) c = Add(b, three) d = Neg(c) e = Sub(d, odd) "
        "y = Sub(e, a)", "int64", None,
    ),
    "quotients": ("h = Mul(x, hundred) a = Cast<to=7>(h) y = Div(a, three)", "int64", 1),
    "remainders": ("h = Mul(x, hundred) a = Cast<to=6>(h) y = Mod(a, minus)", "int32", 1),
    "bounds": ("h = Mul(x, hundred) a = Cast<to=7>(h) y = Clip(a, three, big)", "int64", 1),
    "extremes": ("a = Cast<to=7>(x) b = Cast<to=7>(z) c = Max(a, b) y = Abs(c)", "int64", None),
    "a mask": ("k = Equal(r, q) m = Where(k, zero, low) y = Add(x, m)", "float", None),
    "angles": ("a = Sin(x) b = Cos(z) c = Tan(v) d = Mul(a, b) y = Add(d, c)", "float", 1),
    "signs": ("y = Sign(x)", "float", 1),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_flags_stay_on_an_accelerator(precision: str) -> None:
    """As exporters make masks: tests, logic, comparisons, choices and casts."""
    model = model_of(
        "g (float[4, 40] x, bool[4, 40] k) => (float[4, 40] y, bool[4, 40] f) "
        "{ a = Greater(x, half) b = IsNaN(x) c = Not(b) d = And(a, c) e = Xor(d, k) "
        "f = Or(e, d) n = Cast<to=1>(f) m = Where(f, n, low) y = Add(x, m) }",
        half=np.float32(0.5), low=np.float32(-8),
    )  # fmt: skip
    target = load_target("trn1")
    executable = build(import_model(model), target, options=BuildOptions(precision=precision))
    assert executable.report.host == 0
    inputs = inputs_of(import_model(model))
    inputs["x"] = np.round(inputs["x"] * 8) / 8  # exact in bf16
    inputs["x"][0, 3] = np.nan
    found, wanted = executable.run(inputs), expected(model, inputs)
    np.testing.assert_array_equal(found["f"], wanted["f"])
    np.testing.assert_array_equal(found["y"], wanted["y"])


@pytest.mark.parametrize("name", TYPED)
def test_typed_chains(name: str) -> None:
    body, dtype, count = TYPED[name]
    model = model_of(
        "g (float[2, 3, 5, 4] x, float[2, 3, 5, 4] z, int64[4] r) => "
        f"({dtype}[2, 3, 5, 4] y) {{ {body} }}",
        v=random(3, 1, 1), one=np.float32(1), three=np.int64(3), four=np.int64(4),
        big=np.int64(2**53 + 1), odd=np.int64(2**24 + 1), hundred=np.float32(100),
        minus=np.int32(-7), zero=np.float32(0), low=np.float32(-1e9),
        q=np.arange(5)[:, None], s=np.resize(SPECIAL, (2, 3, 5, 4)),
    )  # fmt: skip
    graph = check_both(model)
    assert count is None or len(graph.nodes) == count


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_reductions_of_whole_numbers(operator: str, dtype: str) -> None:
    over = "" if operator == "ReduceSum" else "<axes = [1]>"
    given = ", axis" if operator == "ReduceSum" else ""
    model = model_of(
        f"g ({dtype}[3, 5, 4] x) => ({dtype}[3, 1, 4] y) {{ y = {operator}{over}(x{given}) }}",
        **({"axis": np.array([1])} if given else {}),
    )
    executable = build(import_model(model), host_target())
    x = np.random.default_rng(0).integers(-9, 9, (3, 5, 4)).astype(dtype)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(model, {"x": x})["y"])
    assert executable.report.host == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_every_bit_is_turned(dtype: str) -> None:
    model = model_of(f"g ({dtype}[6] x) => ({dtype}[6] y) {{ y = BitwiseNot(x) }}", opset=18)
    x = np.array([0, 1, 7, 100, 127, 90]).astype(dtype)
    executable = build(import_model(model), host_target())
    assert not executable.report.host_nodes
    np.testing.assert_array_equal(executable.run({"x": x})["y"], ~x)
