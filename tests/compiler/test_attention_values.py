"""What is no number in attention, and queries that a mask leaves without a key.

The oracle is ONNX's reference. A query that sees no key has a result of 0 whatever the scores of
other queries are; NaN and infinities in queries and keys reach the results that they are part of.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import expected, model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import Target, load_target

TARGETS = [host_target(), load_target("trn1")]
KEEP = np.ones((4, 6), bool)
KEEP[3] = KEEP[1, 2:] = False
ADDED = np.where(KEEP, 0, -np.inf).astype(np.float32)
FINITE = np.where(KEEP, 0, np.finfo(np.float32).min).astype(np.float32)


def check(text: str, target: Target, mask: np.ndarray, bad: float, where: str) -> None:
    """Compiled as one kernel, and as the reference."""
    heads = 2 if "grouped" in text else 4
    kind = "bool" if mask.dtype == bool else "float"
    shape = ", ".join(map(str, mask.shape))
    model = model_of(
        f"g (float[2, 4, 4, 8] q, float[2, {heads}, 6, 8] k, float[2, {heads}, 6, 8] v, "
        f"{kind}[{shape}] m) => (float[2, 4, 4, 8] y) {{ y = {text.removeprefix('grouped ')} }}",
        opset=23,
    )
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((2, count, rows, 8)).astype(np.float32)
        for count, rows in ((4, 4), (heads, 6), (heads, 6))
    )
    (q if where == "q" else k)[0, 0, 1, 3] = bad
    inputs = {"q": q, "k": k, "v": v, "m": mask}
    executable = build(import_model(model), target)
    names = [step.workload for step in executable.recipe.steps if getattr(step, "workload", "")]
    assert [name.split()[0] for name in names].count("attention") == 1
    with np.errstate(invalid="ignore"):
        found = executable.run(inputs)["y"]
        (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    if np.isnan(bad) and where == "k" and mask is not FINITE:
        found[:, :, 3] = wanted[:, :, 3] = 0  # is a query without keys one, if a key is no number?
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("bad", "where"), [(1.0, "k"), (np.nan, "q"), (np.nan, "k"), (np.inf, "k")]
)
@pytest.mark.parametrize("mask", [KEEP, ADDED, FINITE], ids=["bool", "infinite", "finite"])
def test_a_mask_keeps_what_is_no_number(
    mask: np.ndarray, bad: float, where: str, target: Target
) -> None:
    check("Attention(q, k, v, m)", target, mask, bad, where)


@pytest.mark.parametrize(
    "text", ["grouped Attention(q, k, v, m)", "Attention<is_causal=1>(q, k, v, m)"]
)
@pytest.mark.parametrize(("bad", "where"), [(1.0, "k"), (np.nan, "q")])
def test_so_do_groups_and_causality(text: str, bad: float, where: str) -> None:
    check(text, TARGETS[0], KEEP, bad, where)


@pytest.mark.parametrize(
    ("name", "precision"), [("trn1", "bf16"), ("cpu", "fp16"), ("lpu1", "fp16")]
)
def test_narrow_kernels_leave_queries_without_keys_zero(name: str, precision: str) -> None:
    model = model_of(
        "g (float[1, 2, 40, 8] q, float[1, 2, 36, 8] k, float[1, 2, 36, 8] v, bool[40, 36] m) => "
        "(float[1, 2, 40, 8] y) { y = Attention(q, k, v, m) }",
        opset=23,
    )
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (40, 36, 36))
    mask = rng.random((40, 36)) < 0.7
    mask[5] = False
    if name != "lpu1":  # where products turn rows, what is no number reaches others
        q[0, 1, 7, 2] = np.nan
    inputs = {"q": q, "k": k, "v": v, "m": mask}
    options = BuildOptions(precision=precision)
    target = TARGETS[0] if name == "cpu" else load_target(name)
    found = build(import_model(model), target, options=options).run(inputs)["y"]
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    np.testing.assert_allclose(found, wanted, atol=3e-2)
    assert not found[0, :, 5].any()


@pytest.mark.parametrize("low", [-1e9, np.finfo(np.float32).min])
def test_keys_that_a_selection_leaves_out_as_a_whole_weigh_alike(low: float) -> None:
    """Scores of a hundred are not rounded away by -1e9; a selection does not see them."""
    model = model_of(
        "g (float[2, 4, 8] q, float[2, 8, 6] k, float[2, 6, 8] v, bool[4, 6] m) => "
        "(float[2, 4, 8] y) { s = MatMul(q, k) z = Where(m, s, low) "
        "p = Softmax<axis = -1>(z) y = MatMul(p, v) }",
        low=np.float32(low),
    )
    rng = np.random.default_rng(0)
    q, k, v = (
        10 * rng.standard_normal((2, *n)).astype(np.float32) for n in ((4, 8), (8, 6), (6, 8))
    )
    inputs = {"q": q, "k": k, "v": v, "m": KEEP}
    found = build(import_model(model), TARGETS[0]).run(inputs)["y"]
    np.testing.assert_allclose(found, expected(model, inputs)["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("low", [-np.inf, -1e9, np.finfo(np.float32).min])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_a_selection_leaves_out_has_no_part(bad: float, known: bool, low: float) -> None:
    """A key that is no number, beside a sum (`test_a_mask_keeps_what_is_no_number`)."""
    given = "" if known else ", bool[4, 6] m"
    model = model_of(
        f"g (float[2, 4, 8] q, float[2, 8, 6] k, float[2, 6, 8] v{given}) => (float[2, 4, 8] y) "
        "{ s = MatMul(q, k) z = Where(m, s, low) p = Softmax<axis = -1>(z) y = MatMul(p, v) }",
        low=np.float32(low), **({"m": KEEP} if known else {}),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, *n)).astype(np.float32) for n in ((4, 8), (8, 6), (6, 8)))
    k[0, 3, 4] = bad
    inputs = {"q": q, "k": k, "v": v, **({} if known else {"m": KEEP})}
    executable = build(import_model(model), TARGETS[0])
    names = [step.workload for step in executable.recipe.steps if getattr(step, "workload", "")]
    assert [name.split()[0] for name in names].count("attention") == 1
    with np.errstate(invalid="ignore"):
        found = executable.run(inputs)["y"]
    wanted = expected(model, inputs)["y"]
    assert np.isfinite(wanted[0, 1]).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
