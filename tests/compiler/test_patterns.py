"""Patterns recognise a formula however it is written, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import model_of
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.rewriting.patterns import Bindings, Patterns
from tilesmith.compiler.rewriting.rewrite import Rewriter

NUMBERS = {
    "zero": 0.0,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "small": 1e-6,
}


def matched(pattern: str, body: str) -> Bindings | None:
    """What the last node's result is by a pattern."""
    text = f"g (float[2, 8] x, float[2, 8] u) => (float[A, B] y) {{ {body} }}"
    graph = import_model(model_of(text, **{n: np.float32(v) for n, v in NUMBERS.items()}))
    rewriter = Rewriter(graph)
    return next((m for _, m in Patterns((pattern, "")).matches(rewriter, graph.nodes[-1])), None)


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        ("x * Sigmoid(x)", "s = Sigmoid(x) y = Mul(s, x)"),
        ("x * Sigmoid(x) / 2", "s = Sigmoid(x) h = Mul(x, half) y = Mul(h, s)"),
        ("x * Sigmoid(x) / 2", "s = Sigmoid(x) h = Div(s, two) y = Mul(h, x)"),
        ("-x * Tanh(x)", "t = Tanh(x) n = Neg(t) y = Mul(x, n)"),
        ("x / Sqrt(x + 1)", "a = Add(one, x) s = Sqrt(a) y = Div(x, s)"),
        ("x / Sqrt(x + 1)", "a = Add(x, one) s = Sqrt(a) r = Reciprocal(s) y = Mul(r, x)"),
        ("x / Sqrt(x + 1)", "a = Add(x, one) s = Sqrt(a) r = Div(one, s) y = Mul(r, x)"),
        ("Exp(x ** 3)", "p = Pow(x, three) y = Exp(p)"),
        ("Exp(x ** 3)", "s = Mul(x, x) p = Mul(x, s) y = Exp(p)"),
        ("x * Clip(x + 3, 0, 6)", "a = Add(x, three) c = Clip(a, zero, six) y = Mul(c, x)"),
        ("x - mean(x)", "m = ReduceMean<axes=[-1]>(x) y = Sub(x, m)"),
        ("HardSigmoid(x, beta=0.5)", "y = HardSigmoid(x)"),
    ],
)
def test_a_formula_is_recognised_in_each_spelling(pattern: str, body: str) -> None:
    match = matched(pattern, body)
    assert match is not None and match.tensors == {"x": "x"}


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        ("x * Sigmoid(x)", "s = Sigmoid(u) y = Mul(s, x)"),
        ("x * Sigmoid(x) / 2", "s = Sigmoid(x) y = Mul(s, x)"),
        ("x / Sqrt(x + 1)", "a = Add(x, one) s = Sqrt(a) y = Div(s, x)"),
        ("Exp(x ** 3)", "p = Mul(x, x) y = Exp(p)"),
        ("x - mean(x)", "m = ReduceMean<axes=[0]>(x) y = Sub(x, m)"),
        ("x - mean(x)", "m = ReduceMean<axes=[-1]>(x) y = Sub(m, x)"),
        ("HardSigmoid(x, beta=0.5)", "y = HardSigmoid<beta=0.25>(x)"),
    ],
)
def test_another_formula_is_not(pattern: str, body: str) -> None:
    assert matched(pattern, body) is None


def test_a_word_tells_the_number_of_a_constant() -> None:
    match = matched("Sqrt(x + epsilon)", "a = Add(small, x) y = Sqrt(a)")
    assert match is not None and match.numbers == {"epsilon": pytest.approx(1e-6)}
