"""What is computed twice is computed once, and what only looks so is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import check, model_of, operators
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.common_subexpressions import ShareCommon
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.rewriting.graph_pass import apply

BODIES = {
    "twice": ("a = Exp(x) b = Exp(x) y = Add(a, b)", {"Exp": 1, "Add": 1}),
    "in chains": (
        "a = Exp(x) b = Neg(a) c = Exp(x) d = Neg(c) y = Mul(b, d)", {"Exp": 1, "Neg": 1, "Mul": 1},
    ),
    "by equal constants": (
        "a = Add(x, one) b = Add(x, same) y = Mul(a, b)", {"Add": 1, "Mul": 1},
    ),
    "by constants of other shapes": (
        "a = Add(x, one) b = Add(x, longer) y = Mul(a, b)", {"Add": 2, "Mul": 1},
    ),
    "with other attributes": (
        "a = Softmax<axis=0>(x) b = Softmax<axis=1>(x) y = Add(a, b)", {"Softmax": 2, "Add": 1},
    ),
    "operands in another order": (
        "a = Sub(x, z) b = Sub(z, x) y = Mul(a, b)", {"Sub": 2, "Mul": 1},
    ),
    "graph outputs": ("z1 = Exp(x) y = Exp(x)", {"Exp": 2}),
    "several outputs": (
        "a, b = Split<axis=1, num_outputs=2>(x) c, d = Split<axis=1, num_outputs=2>(x) "
        "e = Add(a, d) f = Add(c, b) y = Concat<axis=1>(e, f)",
        {"Split": 1, "Add": 1, "Concat": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_equal_nodes_become_one(name: str) -> None:
    body, left = BODIES[name]
    more = ", float[4, 6] z1" if "z1" in body else ""
    model = model_of(
        f"g (float[4, 6] x, float[4, 6] z) => (float[4, 6] y{more}) {{ {body} }}", 18,
        one=np.float32(1), same=np.float32(1), longer=np.ones((4, 6), np.float32),
    )  # fmt: skip
    assert operators(check(model, lambda g: apply(g, (ShareCommon(),)))) == left


def test_random_numbers_are_drawn_each_time() -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[4, 6] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) "
        "y = Add(a, b) }"
    )
    graph = apply(import_model(model), (ShareCommon(),))
    assert operators(graph)["RandomNormalLike"] == 2


@pytest.mark.parametrize("four", [np.float32(4), np.int64(4), np.float64(4)])
def test_a_constant_cast_to_the_type_of_a_tensor_is_one(four: np.generic) -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[4, 6] y) { c = CastLike(four, x) r = Sqrt(c) y = Mul(x, r) }",
        four=four,
    )
    graph = check(model, lambda g: apply(g, (FoldConstants(),)))
    assert operators(graph) == {"Mul": 1}
