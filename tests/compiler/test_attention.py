"""Attention as exporters write it, masks and all, becomes one kernel and computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import (
    assert_close,
    expected,
    inputs_of,
    model_of,
    operators,
    random,
)
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.compiler.driver.build import BuildOptions, build, extract_tasks
from tilesmith.compiler.driver.pipeline import simplify
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import Target, load_target

TRN1 = load_target("trn1")
HOST = host_target()

HEADS = """g (float[2, 20, 24] x{more}) => (float[2, 20, 24] y) {{
  q0 = MatMul(x, wq) q1 = Reshape(q0, split) q = Transpose<perm = [0, 2, 1, 3]>(q1)
  k0 = MatMul(x, wk) k1 = Reshape(k0, split) k = Transpose<perm = [0, 2, 3, 1]>(k1)
  v0 = MatMul(x, wv) v1 = Reshape(v0, split) v = Transpose<perm = [0, 2, 1, 3]>(v1)
  {scores} {weights} c1 = MatMul(p, v) c2 = Transpose<perm = [0, 2, 1, 3]>(c1)
  y = Reshape(c2, whole) }}"""

GUARDED = "w = Softmax<axis = -1>(s) bad = IsNaN(w) p = Where(bad, zero, w)"
"""As PyTorch's exporter writes scaled_dot_product_attention with a mask of truth values."""

SCALED = "s0 = MatMul(q, k) s1 = Mul(s0, third) "

MASKED = {
    "row": ("row", ", float[2, 1, 1, 20] mask", SCALED + "s = Add(s1, mask)"),
    "row of all": ("row", ", float[1, 1, 1, 20] mask", SCALED + "s = Add(mask, s1)"),
    "full": ("full", ", float[2, 1, 20, 20] mask", SCALED + "s = Add(s1, mask)"),
    "shared": ("shared", ", float[20, 20] mask", SCALED + "s = Add(s1, mask)"),
    "each": ("each", ", float[2, 3, 20, 20] mask", SCALED + "s = Add(s1, mask)"),
    "positions": ("heads", "", SCALED + "s = Add(s1, bias)"),
    "scaled queries": ("row", ", float[2, 1, 1, 20] mask",
                       "q2 = Div(q, three) s1 = MatMul(q2, k) s = Add(s1, mask)"),
    "causal": ("shared", "", SCALED + "s = Where(causal, s1, low)"),
    "filled": ("row", ", bool[2, 1, 1, 20] keep", "drop = Not(keep) " + SCALED +
               "s = Where(drop, infinite, s1)"),
    "chosen": ("full", ", bool[2, 1, 20, 20] keep",
               "mask = Where(keep, zero, infinite) " + SCALED + "s = Add(s1, mask)"),
    "guarded": ("full", ", bool[2, 1, 20, 20] keep", "mask = Where(keep, zero, infinite) "
                "q2 = Mul(q, root) k2 = Mul(k, root) s1 = MatMul(q2, k2) s = Add(s1, mask)"),
    "tokens": ("row", ", int64[2, 20] tokens",
               "m0 = Unsqueeze(tokens, ones) m1 = Cast<to = 1>(m0) m2 = Sub(one, m1) "
               "mask = Mul(m2, low) " + SCALED + "s = Add(s1, mask)"),
}  # fmt: skip
"""Name: the kind of mask, inputs beside x, and how scores are made."""


def attention(name: str) -> onnx.ModelProto:
    _, more, scores = MASKED[name]
    weights = GUARDED if name == "guarded" else "p = Softmax<axis = -1>(s)"
    return model_of(
        HEADS.format(more=more, scores=scores, weights=weights), wq=random(24, 24) / 4,
        wk=random(24, 24, seed=1) / 4, wv=random(24, 24, seed=2) / 4, third=np.float32(1 / 3),
        three=np.float32(3), split=np.array([2, 20, 3, 8]), whole=np.array([2, 20, 24]),
        bias=random(1, 3, 20, 20, seed=4), low=np.float32(-1e9), infinite=np.float32(-np.inf),
        root=np.float32(3**-0.5), zero=np.float32(0), one=np.float32(1), ones=np.array([1, 2]),
        causal=np.tril(np.ones((1, 1, 20, 20))) > 0,
    )  # fmt: skip


def given(model: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """Random inputs; masks leave a third of the keys out, never the first."""
    rng, inputs = np.random.default_rng(7), inputs_of(import_model(model))
    for name, array in inputs.items():
        if name == "x":
            continue
        keep = rng.random(array.shape) < 2 / 3
        keep[..., 0] = True
        inputs[name] = np.where(keep, 0, -1e9) if name == "mask" else keep
        inputs[name] = inputs[name].astype(array.dtype)
    return inputs


@pytest.mark.parametrize("target", [TRN1, HOST], ids=lambda target: target.name)
@pytest.mark.parametrize("name", MASKED)
def test_masked_attention_is_one_kernel(name: str, target: Target) -> None:
    model = attention(name)
    executable, inputs = build(import_model(model), target), given(model)
    kernels = [step.workload for step in executable.recipe.steps if getattr(step, "workload", "")]
    (found,) = [text for text in kernels if text.startswith("attention")]
    assert f"mask={MASKED[name][0]}" in found
    assert not any(text.startswith("softmax") for text in kernels)
    assert_close(executable.run(inputs), expected(model, inputs), 1e-5)


@pytest.mark.parametrize("target", [TRN1, HOST], ids=lambda target: target.name)
def test_a_guard_makes_what_every_key_is_masked_from_zero(target: Target) -> None:
    model = attention("guarded")
    executable, inputs = build(import_model(model), target), given(model)
    inputs["keep"][1, 0, 3:7] = False
    found = executable.run(inputs)
    assert_close(found, expected(model, inputs), 1e-5)
    assert not found["y"][1, 3:7].any() and found["y"][1, 7].all()
    kernels = [step.workload for step in executable.recipe.steps if getattr(step, "workload", "")]
    (fused,) = [text for text in kernels if text.startswith("attention")]
    assert fused.endswith("guard=1")


@pytest.mark.parametrize("name", ["row", "causal", "chosen", "guarded"])
def test_masked_attention_in_bf16(name: str) -> None:
    model = attention(name)
    options = BuildOptions(precision="bf16")
    executable, inputs = build(import_model(model), TRN1, options=options), given(model)
    assert_close(executable.run(inputs), expected(model, inputs), 2e-2)


def test_scores_are_left_out_by_addition() -> None:
    found = operators(simplify(import_model(attention("filled"))))
    assert found["Where"] == 1 and found["Add"] == 1
    high = model_of(
        "g (bool[4, 5] keep, float[4, 5] x) => (float[4, 5] y) "
        "{ s = Where(keep, x, low) y = Softmax<axis = -1>(s) }",
        low=np.float32(-3.0),
    )
    assert operators(simplify(import_model(high)))["Add"] == 0, "-3 leaves nothing out"


OPERATORS = {
    "4d": ("float[2, 3, 10, 8] q, float[2, 3, 12, 8] k, float[2, 3, 12, 5] v",
           "float[2, 3, 10, 5] y", "Attention(q, k, v)"),
    "3d causal": ("float[1, 10, 24] q, float[1, 10, 24] k, float[1, 10, 24] v",
                  "float[1, 10, 24] y",
                  "Attention<is_causal = 1, q_num_heads = 3, kv_num_heads = 3>(q, k, v)"),
    "grouped": ("float[2, 4, 10, 8] q, float[2, 2, 12, 8] k, float[2, 2, 12, 8] v",
                "float[2, 4, 10, 8] y", "Attention<scale = 0.5>(q, k, v)"),
    "truth": ("float[2, 3, 10, 8] q, float[2, 3, 12, 8] k, float[2, 3, 12, 8] v, "
              "bool[2, 1, 10, 12] keep", "float[2, 3, 10, 8] y", "Attention(q, k, v, keep)"),
    "added": ("float[1, 3, 10, 8] q, float[1, 3, 12, 8] k, float[1, 3, 12, 8] v, "
              "float[10, 12] mask", "float[1, 3, 10, 8] y", "Attention(q, k, v, mask)"),
}  # fmt: skip


@pytest.mark.parametrize("target", [TRN1, HOST], ids=lambda target: target.name)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_attention_is_one_kernel(name: str, target: Target) -> None:
    given_as, result, call = OPERATORS[name]
    model = model_of(f"g ({given_as}) => ({result}) {{ y = {call} }}", opset=23)
    inputs = given_to(model)
    executable = build(import_model(model), target)
    kernels = [step.workload for step in executable.recipe.steps if getattr(step, "workload", "")]
    assert [text.split()[0] for text in kernels].count("attention") == 1
    (want,) = ReferenceEvaluator(model).run(None, inputs)
    assert_close(executable.run(inputs), {"y": want}, 1e-5)


def given_to(model: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """Random inputs; truth values keep the first key."""
    inputs = inputs_of(import_model(model))
    if "keep" in inputs:
        inputs["keep"] = np.random.default_rng(3).random(inputs["keep"].shape) < 0.7
        inputs["keep"][..., 0] = True
    return inputs


@pytest.mark.parametrize(
    ("queries", "keys", "kernels"), [(4096, 80, 3), (4096, 96, 1), (80, 80, 1)]
)
def test_on_cpus_it_is_one_kernel_where_that_is_faster(
    queries: int, keys: int, kernels: int
) -> None:
    """With few keys for many queries, products and softmax stay kernels of their own."""
    model = model_of(
        f"g (float[4, {queries}, 64] q, float[4, 64, {keys}] k, float[4, {keys}, 64] v) => "
        f"(float[4, {queries}, 64] y) "
        "{ s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, v) }"
    )
    target = cpu_target("cpu", "avx512", "x86_64-unknown-linux-gnu")
    names = [task.workload.operator for task in extract_tasks(import_model(model), target)]
    names = [name for name in names if name != "transpose"]
    assert len(names) == kernels
    assert ("attention" in names) == (kernels == 1)
