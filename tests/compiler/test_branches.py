"""An `If` whose condition is known before running is the branch that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import model_of

TWICE = """g (float[4, 6] x) => (float[4, 6] y) {
  a = If (first) <
    then_branch = t1 () => (float[4, 6] r) { s = Relu(x) r = Add(s, one) },
    else_branch = e1 () => (float[4, 6] r) { s = Neg(x) r = Mul(s, two) } >
  y = If (second) <
    then_branch = t2 () => (float[4, 6] r) { s = Exp(a) r = Add(s, two) },
    else_branch = e2 () => (float[4, 6] r) { s = Abs(a) r = Mul(s, one) } > }"""

NESTED = """g (float[4, 6] x) => (float[4, 6] y) {
  n = Shape(x) m = Gather(n, zero) c = Equal(m, four)
  y = If (c) <
    then_branch = t1 () => (float[4, 6] r) {
      s = Relu(x)
      r = If (second) <
        then_branch = t2 () => (float[4, 6] q) { q = Add(s, x) },
        else_branch = e2 () => (float[4, 6] q) { q = Identity(s) } > },
    else_branch = e1 () => (float[4, 6] r) { r = Identity(x) } > }"""


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("text", [TWICE, NESTED], ids=["twice", "nested"])
def test_known_branches_are_inlined(text: str, first: bool, second: bool) -> None:
    model = model_of(
        text, first=np.array(first), second=np.array(second), one=np.float32(1),
        two=np.float32(2), zero=np.int64(0), four=np.int64(4),
    )  # fmt: skip
    graph = check_both(model)
    assert not any(node.operator == "If" for node in graph.nodes)


def test_branches_that_only_running_tells_are_both_compiled() -> None:
    model = model_of(
        """g (float[4, 6] x) => (float[4, 6] y) {
          t = ReduceSum<keepdims = 0>(x) c = Greater(t, zero)
          y = If (c) <
            then_branch = t1 () => (float[4, 6] r) { r = Relu(x) },
            else_branch = e1 () => (float[4, 6] r) { r = Neg(x) } > }""",
        zero=np.float32(0),
    )  # fmt: skip
    graph = check_both(model, host=1, opened=1)
    assert any(node.operator == "If" for node in graph.nodes)
