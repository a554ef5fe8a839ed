"""Indices out of range are errors when a model runs, wherever they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, prepared
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import KernelStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.support.errors import JobError, ModelError

GATHER = "g (float[5, 3] x, int64[2] i) => (float[2, 3] y) { t = Relu(x) y = Gather(t, i) }"


def _inputs(*indices: int) -> dict[str, Any]:
    return {"x": random(5, 3), "i": np.array(indices)}


@pytest.mark.parametrize("target", [host_target(), load_target("trn1")], ids=["cpu", "trn1"])
@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_an_index_of_a_run_is_checked_before_its_kernel(target: Target, index: int) -> None:
    model = model_of(GATHER)
    executable = build(import_model(model), target)
    assert executable.report.host == 0
    inputs = _inputs(4, -5)
    assert_close(executable.run(inputs), expected(model, inputs))
    with pytest.raises(
        JobError, match=rf"gather 'y' takes index {index} of an axis with 5 entries; indices run "
        "from -5 to 4"
    ):  # fmt: skip
        executable.run(_inputs(0, index))
    assert_close(executable.run(inputs), expected(model, inputs))


def test_a_saved_model_checks_as_well(tmp_path: Path) -> None:
    build(import_model(model_of(GATHER)), host_target()).save(tmp_path / "m.tsm")
    executable = Executable.load(tmp_path / "m.tsm")
    with pytest.raises(JobError, match="index 7 of an axis with 5"):
        executable.run(_inputs(7, 0))


def test_kernels_of_one_run_stay_one_call() -> None:
    """The check of what is known before the first of them comes first."""
    executable = build(import_model(model_of(GATHER)), host_target())
    steps = [step for step in executable.recipe.steps if isinstance(step, KernelStep)]
    assert [len(step.checks) for step in steps] == [1] + [0] * (len(steps) - 1)


def test_a_check_may_part_a_run_of_kernels() -> None:
    """As it would for indices that a kernel of the same run computes."""
    model = model_of(GATHER.replace("Relu(x)", "Softmax(x)"))
    recipe = build(import_model(model), host_target()).recipe
    first, *others = recipe.steps
    assert isinstance(first, KernelStep) and isinstance(others[-1], KernelStep)
    last = replace(others[-1], checks=first.checks)
    parted = (replace(first, checks=()), *others[:-1], last)
    executable, inputs = Executable(replace(recipe, steps=parted)), _inputs(1, -1)
    assert_close(executable.run(inputs), expected(model, inputs))
    with pytest.raises(JobError, match="index 5 of an axis"):
        executable.run(_inputs(5, 0))


def test_an_index_that_the_host_computes_is_checked() -> None:
    text = """g (float[5, 3] x, float[2, 9] s) => (float[2, 3] y) {
        i = ArgMax<axis=1, keepdims=0>(s) t = Relu(x) y = Gather(t, i) }"""
    executable = build(import_model(model_of(text)), host_target())
    scores = np.zeros((2, 9), np.float32)
    scores[:, 4] = 1
    x = random(5, 3)
    np.testing.assert_array_equal(
        executable.run({"x": x, "s": scores})["y"], np.maximum(x, 0)[[4, 4]]
    )
    scores[1, 8] = 2
    with pytest.raises(JobError, match="index 8 of an axis with 5"):
        executable.run({"x": x, "s": scores})


def test_the_reference_checks_as_well() -> None:
    graph = import_model(model_of(GATHER))
    for stage in (graph, prepared(graph)):
        with pytest.raises(JobError, match=r"'y' .*5"):
            run_reference(stage, _inputs(0, 5))


def test_an_index_folded_late_is_checked_by_the_compiler() -> None:
    text = """g (float[5, 3] x) => (float[1, 3] y) { n = Neg(six) y = Gather(x, n) }"""
    with pytest.raises(ModelError, match="index -6 of an axis with 5"):
        build(import_model(model_of(text, six=np.array([6]))), host_target())


CLAMPED = """g (float[5, 3] x, int64[2] i) => (float[2, 3] y) {{
    t = Relu(x) a = Max(i, low) b = Min(a, high) {then} y = Gather(t, c) }}"""


@pytest.mark.parametrize(
    ("then", "high", "checked"),
    [
        ("c = Identity(b)", 4, False),
        ("c = Identity(b)", 5, True),
        ("c = Sub(b, four)", 4, False),
        ("c = Mul(b, four)", 1, False),
        ("c = Mul(b, large)", 1, True),
        ("c = Concat<axis=0>(b, i)", 4, True),
    ],
)
def test_what_is_sure_to_lie_inside_is_not_checked(then: str, high: int, checked: bool) -> None:
    text = CLAMPED.format(then=then)
    if "Concat" in then:
        text = text.replace("float[2, 3] y", "float[4, 3] y")
    numbers = {"low": 0, "high": high, "four": 4, "large": 2**62}
    model = model_of(text, **{name: np.array(n, np.int64) for name, n in numbers.items()})
    executable = build(import_model(model), host_target())
    steps = [step for step in executable.recipe.steps if isinstance(step, KernelStep)]
    assert any(step.checks for step in steps) == checked
    inputs = _inputs(-7 if not checked else 0, 9 if not checked else 0)
    assert_close(executable.run(inputs), expected(model, inputs))


@pytest.mark.parametrize(("shift", "native"), [(0, True), (-1, True), (1, False)])
def test_a_loop_that_reads_rows_by_its_counter_is_compiled(shift: int, native: bool) -> None:
    """Of index -1 it reads the last row; what would be behind the last one, nobody can know."""
    body = "b (int64 n, bool go, float[3] s) => (bool on, float[3] t)"
    step = "{ on = Identity(go) k = Add(n, d) r = Gather(x, k) h = Tanh(s) t = Add(h, r) }"
    model = model_of(
        "g (float[5, 3] x, float[3] s0) => (float[3] y) { y = Loop(five, true, s0)"
        f"<body = {body} {step}> }}",
        five=np.array(5), true=np.array(True), d=np.array(shift),
    )  # fmt: skip
    executable = build(import_model(model), host_target())
    assert (executable.report.host == 0) == native
    inputs = {"x": random(5, 3), "s0": random(3)}
    if native:
        assert_close(executable.run(inputs), expected(model, inputs))
        return
    with pytest.raises(JobError):
        executable.run(inputs)
