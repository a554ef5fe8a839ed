"""What cancels, overflows or steps in a formula does so in what it is compiled to.

The oracle is the formula in double precision; where that is as good as any, a bound is what single
precision loses if it is computed as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.driver.pipeline import simplify
from tilesmith.compiler.numerics.rounding import (
    in_range,
    is_ordinary,
    is_power_of_two,
    is_small_shift,
)
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.affine import FoldAffine

Arrays = Mapping[str, NDArray[Any]]
N = 8
EXACT = 1e4 + np.arange(-4, 4) * 2.0**-9
"""Numbers near ten thousand that single precision holds."""


def compiled(model: onnx.ModelProto, inputs: Arrays) -> NDArray[Any]:
    return build(import_model(model), host_target()).run(dict(inputs))["y"]


def formula(body: str, **constants: Any) -> onnx.ModelProto:
    single = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    return model_of(f"g (float[{N}] x) => (float[{N}] y) {{ {body} }}", **single)


K = np.float32(1e3 / 7)
CANCELLING = {
    "a shift, a scale": ("a = Sub(x, c) y = Mul(a, k)", lambda x: (x - 1e4) * K),
    "a shift, a quotient": ("a = Sub(x, c) y = Div(a, k)", lambda x: (x - 1e4) / K),
    "a scale that is exact": (
        "t = Mul(x, two) a = Sub(t, d) y = Mul(a, k)", lambda x: (2 * x - 2e4) * K,
    ),
    "two shifts": ("a = Sub(x, c) y = Add(a, little)", lambda x: (x - 1e4) + np.float32(1e-4)),
    "a shift per element": ("a = Add(each, x) y = Mul(k, a)", lambda x: (x - 1e4) * K),
}  # fmt: skip


@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_keeps_its_digits(name: str) -> None:
    body, wanted = CANCELLING[name]
    model = formula(body, c=1e4, d=2e4, two=2, k=1e3 / 7, little=1e-4, each=np.full(N, -1e4))
    x = EXACT.astype(np.float32)
    np.testing.assert_allclose(compiled(model, {"x": x}), wanted(EXACT), rtol=3e-7, atol=0)


def test_a_large_shift_that_rounds_to_whole_numbers_stays() -> None:
    """Adding 1.5 times 2^23 and taking it away again is how some models round."""
    model = formula("a = Add(x, c) y = Sub(a, c)", c=1.5 * 2**23)
    x = np.linspace(-3.3, 3.9, N).astype(np.float32)
    np.testing.assert_array_equal(compiled(model, {"x": x}), np.rint(x))


@pytest.mark.parametrize(
    ("body", "x", "wanted"),
    [
        ("a = Add(x, big) y = Mul(a, ten)", -3e38, 0.0),
        ("a = Mul(x, tiny) y = Mul(a, tiny)", 1e38, 1e-22),
        ("a = Mul(x, large) y = Mul(a, large)", 1e-30, 1e30),
        ("y = Div(x, big)", 3e38, 1.0),
    ],
)
def test_joined_constants_stay_in_range(body: str, x: float, wanted: float) -> None:
    model = formula(body, big=3e38, ten=10, tiny=1e-30, large=1e30)
    found = compiled(model, {"x": np.full(N, x, np.float32)})
    np.testing.assert_allclose(found, np.full(N, wanted), rtol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "d = Div(x, c) y = Floor(d)",
        "d = Div(x, c) a = Add(one, d) y = Floor(a)",
        "d = Div(x, c) i = Cast<to = 7>(d) y = Cast<to = 1>(i)",
        "d = Div(x, c) f = Floor(d) y = Sub(d, f)",
    ],
)
def test_quotients_that_are_whole_numbers_are(body: str) -> None:
    """41 times the rounded 1/41 is less than 1."""
    model = formula(body, c=41, one=1)
    x = (41 * np.arange(1, N + 1)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(compiled(model, {"x": x}), wanted)


@pytest.mark.parametrize("product", ["", "Conv", "ConvTranspose", "depthwise", "MatMul"])
def test_a_far_mean_is_taken_away_first(product: str) -> None:
    """A batch normalisation whose mean is 30,000 deviations, alone and behind products that are
    exact."""
    rank = "2, 4" if product == "MatMul" else "2, 4, 3, 3"
    node = {
        "": "p = Identity(x)", "Conv": "p = Conv(x, w)", "ConvTranspose": "p = ConvTranspose(x, w)",
        "depthwise": "p = Conv<group = 4>(x, ones)", "MatMul": "p = MatMul(x, m)",
    }[product]  # fmt: skip
    model = model_of(
        f"g (float[{rank}] x) => (float[{rank}] y) "
        f"{{ {node} y = BatchNormalization<epsilon = 0.0>(p, s, b, mean, var) }}",
        w=np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1), m=np.eye(4, dtype=np.float32),
        ones=np.ones((4, 1, 1, 1), np.float32), s=np.full(4, 3, np.float32),
        b=np.zeros(4, np.float32), mean=np.full(4, 300, np.float32),
        var=np.full(4, 1e-4, np.float32),
    )  # fmt: skip
    x = (300 + 2.0**-12 * np.arange(72).reshape(2, 4, 3, 3)).astype(np.float32)
    x = x[:, :, 0, 0] if product == "MatMul" else x
    wanted = (x.astype(np.float64) - 300) * 3 / np.sqrt(np.float64(np.float32(1e-4)))
    np.testing.assert_allclose(compiled(model, {"x": x}), wanted, rtol=1e-6, atol=0)


def test_ordinary_constants_still_meet() -> None:
    """A normalised convolution with scales behind it is one operator; so are scales of scales."""
    model = model_of(
        "g (float[2, 4, 5, 5] x) => (float[2, 4, 5, 5] y) { a = Conv(x, w, b) "
        "n = BatchNormalization(a, s, b, m, v) c = Mul(n, k) d = Sub(c, m1) y = Div(d, k) }",
        w=random(4, 4, 1, 1), b=random(4), s=random(4), m=10 * random(4), v=np.abs(random(4)),
        k=np.float32(0.3), m1=random(4, 1, 1),
    )  # fmt: skip
    assert [node.operator for node in simplify(import_model(model)).nodes] == ["Conv"]
    scales = formula("a = Mul(x, k) b = Mul(a, c) d = Add(b, one) y = Mul(d, c)", k=0.3, c=7, one=1)
    graph = FoldAffine().run(import_model(scales))
    assert [node.operator for node in graph.nodes] == ["Mul", "Add"]
    powers = formula("a = Add(x, one) b = Add(a, two) y = Relu(b)", one=1, two=2)
    graph = FoldAffine().run(import_model(powers))
    assert [node.operator for node in graph.nodes] == ["Add", "Relu"]


def test_scales_of_extreme_operands_stay_where_they_are() -> None:
    """Products of what is not scaled yet would overflow."""
    model = model_of(
        "g (float[2, 8] x) => (float[2, 2] y) { a = Mul(x, s) t = Transpose<perm = [1, 0]>(x) "
        "y = MatMul(a, t) }",
        s=np.float32(1e-30),
    )  # fmt: skip
    x = np.full((2, 8), 1e25, np.float32)
    np.testing.assert_allclose(compiled(model, {"x": x}), np.full((2, 2), 8e20), rtol=1e-5)


ROOTS = {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
EXPORTED = "d = Div({x}, r) e = Erf(d) a = Add(e, one) m = Mul({x}, a) y = Mul(m, half) }}"


@pytest.mark.parametrize("after", ["", "MatMul"])
@pytest.mark.parametrize("form", ["y = Gelu({x}) }}", EXPORTED])
def test_gelu_has_a_tail(form: str, after: str) -> None:
    """Far out 1 + erf cancels; of its own accord, and on what a product gives."""
    x = np.linspace(-13, 6, 8 * 64).astype(np.float32).reshape(64, 8)
    product = "p = MatMul(x, w) " if after else ""
    text = form.format(x="p" if after else "x")
    model = model_of(
        f"g (float[64, 8] x) => (float[64, 8] y) {{ {product}{text}",
        w=np.eye(8, dtype=np.float32), opset=20, **ROOTS,
    )  # fmt: skip
    wide = x.astype(np.float64)
    wanted = wide / 2 * np.vectorize(math.erfc)(-wide / 2**0.5)
    np.testing.assert_allclose(compiled(model, {"x": x}), wanted, rtol=2e-5, atol=1e-44)


def test_bounds() -> None:
    assert is_ordinary(np.array([0, 1e-3, -1e6])) and not is_ordinary(np.array([1.0, 1e20]))
    assert not is_ordinary(np.array([np.nan])) and not is_ordinary(np.array([np.inf]))
    assert is_small_shift(np.array(3.0), 100.0) and not is_small_shift(np.array(3.0), 1000.0)
    assert not is_small_shift(np.array(np.nan)) and not is_small_shift(np.array(0.0), np.inf)
    assert is_power_of_two(np.array([0, -0.25, 8])).all() and not is_power_of_two(np.array(3.0))
    assert in_range(np.array([1e-40]), np.array([1e-38])) and in_range(np.zeros(2), np.zeros(2))
    assert not in_range(np.array([1.0]), np.array([1e39]))
    assert not in_range(np.array([1e-20]), np.array([1e-30]))
