"""Inputs with an initialiser: constants, unless the caller names them among the shapes."""

from __future__ import annotations

import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError

MODEL = model_of(
    "g (float[3, 4] x, float[4, 2] w) => (float[3, 2] y) { y = MatMul(x, w) }", w=random(4, 2)
)


def test_a_named_one_is_fed() -> None:
    x, w = random(3, 4), random(4, 2, seed=5)
    constant = build(import_model(MODEL), host_target())
    assert_close(constant.run({"x": x}), expected(MODEL, {"x": x}))
    fed = build(import_model(MODEL, {"w": (4, 2)}), host_target())
    assert_close(fed.run({"x": x, "w": w}), expected(MODEL, {"x": x, "w": w}))
    with pytest.raises(ModelError, match="input 'w' of 'g' is missing"):
        fed.run({"x": x})


def test_its_shape_stays_what_is_declared() -> None:
    with pytest.raises(ModelError, match="'w' of 'g' is 4x2; 4x3 does not fit it"):
        import_model(MODEL, {"w": (4, 3)})
    hidden = model_of("g (float[3, 4] x) => (float[3, 2] y) { y = MatMul(x, w) }", w=random(4, 2))
    with pytest.raises(ModelError, match="no input 'w'"):
        import_model(hidden, {"w": (4, 2)})
