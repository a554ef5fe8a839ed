"""What graphs go through for an LPU-like chip: rows kept, nothing on the host that need not be."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep, KernelStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import load_target

TARGET = load_target("lpu1")


def built(model: onnx.ModelProto) -> Executable:
    """Compiled, with nothing on the host."""
    executable = build(import_model(model), TARGET)
    assert not [s.name for s in executable.recipe.steps if isinstance(s, HostStep)]
    return executable


def kernels(executable: Executable) -> list[str]:
    return [s.workload for s in executable.recipe.steps if isinstance(s, KernelStep)]


def test_a_table_may_be_weights_too() -> None:
    table = random(64, 48)
    text = (
        "tied (int64[1, 5] i) => (float[1, 5, 64] y) "
        "{ h = Gather(t, i) u = Transpose<perm=[1, 0]>(t) y = MatMul(h, u) }"
    )
    given = np.array([[3, 63, 0, 9, 9]])
    want = table[given] @ table.T
    got = built(model_of(text, t=table)).run({"i": given})["y"]
    assert np.abs(got - want).max() <= 4e-3 * np.abs(want).max()


def test_who_reads_a_whole_gets_all_parts_that_are_written_into_it() -> None:
    text = (
        "parts (float[2, 64] x, float[3, 64] z) => (float[5, 64] y, int64[n, 2] k) "
        "{ a = Sigmoid(x) b = Tanh(z) y = Concat<axis=0>(a, b) k0 = NonZero(y) "
        "  k = Transpose<perm=[1, 0]>(k0) }"
    )
    x, z = random(2, 64), random(3, 64)
    want = np.concatenate([1 / (1 + np.exp(-x)), np.tanh(z)])
    found = build(import_model(model_of(text)), TARGET).run({"x": x, "z": z})
    assert np.abs(found["y"] - want).max() <= 1e-3
    assert np.array_equal(found["k"], np.argwhere(want))


def test_pixels_are_doubled_where_convolutions_leave_them() -> None:
    text = (
        "up (float[1, 8, 6, 6] x) => (float[1, 8, 12, 12] y) { a = Conv<pads=[1,1,1,1]>(x, w) "
        '  r = Resize<mode="nearest">(a, , , size) y = Conv<pads=[1,1,1,1]>(r, v) }'
    )
    w, v = random(8, 8, 3, 3) / 8, random(8, 8, 3, 3, seed=1) / 8
    model = model_of(text, w=w, v=v, size=np.array([1, 8, 12, 12]))
    executable = built(model)
    found = executable.run({"x": random(1, 8, 6, 6)})["y"]
    want = ReferenceEvaluator(model).run(None, {"x": random(1, 8, 6, 6)})[0]
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()
    resized = next(key for key in kernels(executable) if key.startswith("resize"))
    assert "sizes=1x12x12x8" in resized


def test_constants_as_large_as_an_image_are_laid_out_as_it_is() -> None:
    text = (
        "placed (float[1, 8, 6, 6] x) => (float[1, 8, 12, 12] y) { a = Conv<pads=[1,1,1,1]>(x, w) "
        '  r = Resize<mode="nearest">(a, , , size) m = Mul(r, p) s = Sigmoid(m) '
        "  y = Conv<pads=[1,1,1,1]>(s, v) }"
    )
    weights = {"w": random(16, 8, 3, 3), "v": random(8, 16, 3, 3), "p": random(1, 16, 12, 12)}
    model = model_of(text, size=np.array([1, 16, 12, 12]), **weights)
    x = random(1, 8, 6, 6)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    got = built(model).run({"x": x})["y"]
    assert np.abs(got - want).max() <= 4e-3 * np.abs(want).max()


def test_what_whole_numbers_are_scaled_to_goes_on_in_float16() -> None:
    text = (
        "scaled (float[1, 12, 40] x) => (float[1, 24, 12] y) "
        "{ q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx) "
        "  v = DequantizeLinear(w, sw, zw) m = MatMul(d, v) t = Transpose<perm=[0, 2, 1]>(m) "
        "  n = MatMul(u, t) r = Add(n, b) y = Tanh(r) }"
    )
    scales = {"sx": np.array(1 / 16, np.float32), "sw": np.array(1 / 1024, np.float32)}
    zeros = {"zx": np.array(3, np.int8), "zw": np.array(0, np.int8)}
    w = np.random.default_rng(5).integers(-90, 90, (40, 16)).astype(np.int8)
    weights = {"w": w, "u": random(1, 24, 16) / 9, "b": random(12), **scales, **zeros}
    x = np.round(32 * random(1, 12, 40)) / np.float32(16)  # no ties, which float16 would move
    data = (np.clip(np.round(x / scales["sx"]) + 3, -128, 127) - 3) * scales["sx"]
    products = data @ (w * scales["sw"])
    want = np.tanh(weights["u"] @ products.transpose(0, 2, 1) + weights["b"])
    assert np.abs(built(model_of(text, **weights)).run({"x": x})["y"] - want).max() <= 4e-3


def test_what_the_caller_hands_over_to_be_quantised_is_not_rounded_first() -> None:
    """Of 4,000 numbers some forty would be other bytes behind a rounding to float16."""
    text = (
        "bytes (float[1, 10, 400] x) => (float[1, 10, 400] y) "
        "{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Neg(d) }"
    )
    model = model_of(text, s=np.array(1 / 64, np.float32), z=np.array(3, np.int8))
    x = random(1, 10, 400)
    want = -(np.clip(np.rint(x * 64) + 3, -128, 127) - 3) / 64
    assert np.array_equal(built(model).run({"x": x})["y"], want)


def local_response(x: np.ndarray, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    """The formula of ONNX's LRN, channel by channel."""
    found = np.empty_like(x)
    for c in range(x.shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + size // 2)
        total = (x[:, low : high + 1] ** 2).sum(axis=1)
        found[:, c] = x[:, c] / (bias + alpha / size * total) ** beta
    return found


@pytest.mark.parametrize(("rows", "width"), [(100, 96), (4103, 24), (4100, 330)])
def test_rows_of_tables_are_picked_by_the_callers_numbers(rows: int, width: int) -> None:
    table = random(rows, width)
    text = f"e (int64[2, 3] i) => (float[2, 3, {width}] y) {{ y = Gather(t, i) }}"
    given = np.array([[0, rows - 1, -1], [-rows, min(4096, rows - 2), 63]])
    got = built(model_of(text, t=table)).run({"i": given})["y"]
    assert np.array_equal(got, table.astype(np.float16)[given].astype(np.float32))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Log(x)", np.log),
        ("y = Softplus(x)", lambda x: np.log1p(np.exp(x))),
        ("y = Pow(x, p)", lambda x: x**-0.75),
    ],
)
def test_logarithms_and_powers_run_on_the_chip(body: str, wanted: object) -> None:
    x = np.exp(random(4, 33)).astype(np.float16).astype(np.float32)
    text = f"e (float[4, 33] x) => (float[4, 33] y) {{ {body} }}"
    got = built(model_of(text, p=np.array(-0.75, np.float32))).run({"x": x})["y"]
    want = wanted(x)  # type: ignore[operator]
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()


def test_local_response_normalisation_is_a_product_with_a_band() -> None:
    x = 3 * random(1, 20, 9, 9)
    text = (
        "lrn (float[1, 20, 9, 9] x) => (float[1, 20, 9, 9] y) "
        "{ y = LRN<size = 4, alpha = 0.1, beta = 0.75, bias = 2.0>(x) }"
    )
    executable = built(model_of(text))
    assert not any(name.startswith("pool2d") for name in kernels(executable))
    want = local_response(x, 4, 0.1, 0.75, 2.0)
    assert np.abs(executable.run({"x": x})["y"] - want).max() <= 4e-3 * np.abs(want).max()


def test_images_stay_as_convolutions_leave_them_where_they_are_put_together() -> None:
    text = (
        "cnn (float[1, 8, 8, 8] x) => (float[1, 16, 8, 8] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w1) s = Sigmoid(a) b = Mul(a, s) c = Conv(x, w2) "
        "  d = Concat<axis=1>(b, c) y = Conv<pads=[1,1,1,1]>(d, w3) }"
    )
    weights = {"w1": random(40, 8, 3, 3) / 8, "w2": random(50, 8, 1, 1), "w3": random(16, 90, 3, 3)}
    executable = built(model_of(text, **weights))
    moves = [name for name in kernels(executable) if name.startswith("layout_transform")]
    assert sum("dst=NCHW " in name for name in moves) == 1, "only what the caller gets"
    other = build(import_model(model_of(text, **weights)), load_target("trn1"))
    given = {"x": random(1, 8, 8, 8)}
    want = other.run(given)["y"]
    assert np.abs(executable.run(given)["y"] - want).max() <= 4e-3 * np.abs(want).max()


def test_elementwise_kernels_keep_rows() -> None:
    text = "e (float[5, 7, 40] x) => (float[5, 7, 40] y) { s = Sigmoid(x) y = Mul(x, s) }"
    (name,) = kernels(built(model_of(text)))
    assert "shape=35x40" in name
