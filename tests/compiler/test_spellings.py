"""Operators written in smaller ones, and transposes that cancel across what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import check, model_of, operators, random
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.passes.spellings import UnifySpellings
from tilesmith.compiler.passes.transposes import SinkTransposes
from tilesmith.compiler.rewriting.graph_pass import apply

ZERO, ONE, SIX = (np.array(n, np.float32) for n in (0, 1, 6))


def _unified(graph: Graph) -> Graph:
    return apply(graph, (UnifySpellings(), RemoveDeadCode()))


def _sunk(graph: Graph) -> Graph:
    return apply(graph, (SinkTransposes(), RemoveDeadCode()))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Max(x, low)", "Identity"),
        ("y = Max(zero, x)", "Relu"),
        ("a = Max(x, zero) y = Min(a, six)", "Clip"),
        ("a = Min(six, x) y = Max(one, a)", "Clip"),
        ("a = Neg(x) e = Exp(a) s = Add(one, e) y = Div(one, s)", "Sigmoid"),
        ("a = Neg(x) e = Exp(a) s = Add(e, one) y = Reciprocal(s)", "Sigmoid"),
    ],
)
def test_maps_in_smaller_ones(body: str, left: str) -> None:
    body = body.replace("y = ", "y0 = ") + " y = Identity(y0)"
    model = model_of(
        f"g (float[3,8] x) => (float[3,8] y) {{ {body} }}",
        zero=ZERO, one=ONE, six=SIX, low=np.array(-np.inf, np.float32),
    )  # fmt: skip
    assert {*operators(check(model, _unified))} == {left, "Identity"}


@pytest.mark.parametrize("divided", ["Div(s, n)", "Mul(s, inverse)"])
def test_sums_divided_by_their_count_are_means(divided: str) -> None:
    model = model_of(
        f"""g (float[3,8] x) => (float[3,1] y) {{
          s = ReduceSum(x, axes) y = {divided} }}""",
        axes=np.array([1]), n=np.array(8, np.float32), inverse=np.array(0.125, np.float32),
    )  # fmt: skip
    assert operators(check(model, _unified)) == {"ReduceMean": 1}


def test_sums_divided_by_another_number_are_not() -> None:
    model = model_of(
        "g (float[3,8] x) => (float[3,1] y) { s = ReduceSum(x, axes) y = Div(s, n) }",
        axes=np.array([1]), n=np.array(7, np.float32),
    )  # fmt: skip
    assert "ReduceMean" not in operators(check(model, _unified))


@pytest.mark.parametrize("factor", [np.nan, np.inf, -np.inf, 1e-45, 0.0])
def test_sums_times_no_share_are_not(factor: float) -> None:
    model = model_of(
        "g (float[3,8] x) => (float[3,1] y) { s = ReduceSum(x, axes) y = Mul(s, n) }",
        axes=np.array([1]), n=np.array(factor, np.float32),
    )  # fmt: skip
    assert operators(_unified(import_model(model))) == {"ReduceSum": 1, "Mul": 1}


def test_transposes_cancel_across_maps_sums_and_vectors() -> None:
    model = model_of(
        """g (float[1,4,5,6] x, float[1,4,5,6] z, float[4] v) => (float[1,4,5,6] y) {
          a = Transpose<perm=[0,2,3,1]>(x) b = Transpose<perm=[0,2,3,1]>(z)
          c = Add(a, scale) d = Mul(c, v) e = Relu(d) f = Add(e, b) h = Clip(f, low, high)
          y = Transpose<perm=[0,3,1,2]>(h) }""",
        scale=random(4), low=ZERO, high=SIX,
    )  # fmt: skip
    assert "Transpose" not in operators(check(model, _sunk))


def test_transposes_cancel_across_reductions_concatenations_and_softmaxes() -> None:
    model = model_of(
        """g (float[2,4,5,6] x) => (float[1,4,10,6] y, float[2,1,5,6] m, float[2,4,5,6] p) {
          a = Transpose<perm=[2,1,0,3]>(x) b = ReduceMax(a, axes) c = Softmax<axis=-1>(a)
          d = Concat<axis=0>(a, a) e = ReduceSum(d, last) y = Transpose<perm=[2,1,0,3]>(e)
          m = Transpose<perm=[2,1,0,3]>(b) p = Transpose<perm=[2,1,0,3]>(c) }""",
        opset=18, axes=np.array([1]), last=np.array([2]),
    )  # fmt: skip
    assert "Transpose" not in operators(check(model, _sunk))


def test_a_transpose_that_someone_needs_stays_where_it_is() -> None:
    model = model_of(
        """g (float[4,6] x, float[4,6] w) => (float[6,6] y, float[6,4] r) {
          a = Transpose<perm=[1,0]>(x) r = Relu(a) y = MatMul(a, w) }"""
    )
    assert operators(check(model, _sunk)) == {"Transpose": 1, "Relu": 1, "MatMul": 1}
