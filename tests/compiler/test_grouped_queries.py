"""Heads of queries that share keys and values: attention without repeating these."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, operators
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

TARGETS = {"cpu": host_target(), "trn1": load_target("trn1")}

REPEATED = """g (float[{b}, 6, {m}, 8] q, float[{b}, 2, 10, 8] k, float[{b}, 2, 10, 8] v{more})
  => (float[{b}, 6, {m}, 8] y) {{
  k0 = Unsqueeze(k, two) k1 = Expand(k0, repeated) k2 = Reshape(k1, whole)
  v0 = Unsqueeze(v, two) v1 = Expand(v0, repeated) v2 = Reshape(v1, whole)
  kt = Transpose<perm = [0, 1, 3, 2]>(k2) s0 = MatMul(q, kt) s1 = Mul(s0, third) {mask}
  p = Softmax<axis = -1>(s) y = MatMul(p, v2) }}"""

MASKS = {
    "none": ("", "s = Identity(s1)"),
    "shared": (", float[{m}, 10] mask", "s = Add(s1, mask)"),
    "row": (", float[{b}, 1, 1, 10] mask", "s = Add(s1, mask)"),
    "full": (", float[{b}, 1, {m}, 10] mask", "s = Add(s1, mask)"),
    "heads": (", float[1, 6, {m}, 10] mask", "s = Add(s1, mask)"),
    "each": (", float[{b}, 6, {m}, 10] mask", "s = Add(s1, mask)"),
}


def grouped(mask: str, batch: int, queries: int) -> onnx.ModelProto:
    more, text = MASKS[mask]
    body = REPEATED.format(b=batch, m=queries, more=more.format(b=batch, m=queries), mask=text)
    return model_of(
        body, two=np.array([2]), third=np.float32(1 / 3),
        repeated=np.array([batch, 2, 3, 10, 8]), whole=np.array([batch, 6, 10, 8]),
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "queries"), [(1, 1), (1, 5), (2, 1), (2, 5)])
@pytest.mark.parametrize("mask", MASKS)
def test_keys_and_values_are_not_repeated(mask: str, batch: int, queries: int, target: str) -> None:
    model = grouped(mask, batch, queries)
    executable = build(import_model(model), TARGETS[target])
    kernels = operators(scheduled(import_model(model), TARGETS[target]))
    (attention,) = (key for key in kernels if key.startswith("attention"))
    assert f" m={3 * queries} " in f" {attention} ", kernels
    assert not any("x0=2x1x80" in key or "x0=4x1x80" in key for key in kernels), kernels
    inputs = inputs_of(import_model(model))
    assert_close(executable.run(inputs), expected(model, inputs))


def test_keys_repeated_otherwise_than_values_stay() -> None:
    """Heads that are repeated in turns, not each after itself, share nothing in one run."""
    text = REPEATED.format(b=1, m=5, more="", mask="s = Identity(s1)")
    text = text.replace("k0 = Unsqueeze(k, two)", "k0 = Unsqueeze(k, one)")
    text = text.replace("k1 = Expand(k0, repeated)", "k1 = Expand(k0, turns)")
    model = model_of(
        text, one=np.array([1]), two=np.array([2]), third=np.float32(1 / 3),
        repeated=np.array([1, 2, 3, 10, 8]), turns=np.array([1, 3, 2, 10, 8]),
        whole=np.array([1, 6, 10, 8]),
    )  # fmt: skip
    executable = build(import_model(model), TARGETS["cpu"])
    assert any(" heads=6" in step.workload for step in executable.recipe.steps)  # type: ignore[union-attr]
    inputs = inputs_of(import_model(model))
    assert_close(executable.run(inputs), expected(model, inputs))
