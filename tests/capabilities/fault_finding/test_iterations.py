"""A loop that goes wrong is compared iteration by iteration: the first that does is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.capabilities.fault_finding.defects import cleared, lowering_without_a_tail
from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.fault_finding.comparison_table import comparison_text
from tilesmith.compiler.backends.cpu.backend import CpuBackend
from tilesmith.compiler.recipe.program import MoveStep, Place
from tilesmith.search_space.workloads.workload import Workload

INIT = MoveStep.__init__
FALLING = model_of(
    """g (float[4] x) => (float[4] last, float[6, 4] rows) {
    last, rows = Loop(n, yes, x) <body = b (int64 i, bool c, float[4] s)
        => (bool d, float[4] t, float[4] r) {
        d = Identity(c) t = Sub(s, one) r = Relu(t) }> }""",
    one=np.float32(1.0), yes=np.array(True), n=np.array(6),
)  # fmt: skip
SEQUENCE = model_of(
    """g (float[5,1,3] x) => (float[5,1,1,6] y, float[5,1,3] z) {
    y = LSTM <hidden_size=6> (x, w, r, b)  z = Tanh(x) }""",
    w=random(1, 24, 3), r=random(1, 24, 6), b=random(1, 48),
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a broken compiler makes is in no other test's cache."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    cleared()
    yield
    cleared()


def without_relu(patch: pytest.MonkeyPatch) -> None:
    """Code of kernels that leaves the rectifier out: wrong as soon as a number is below 0."""
    compiled = CpuBackend.compile

    def broken(self: Any, workload: Workload, *rest: Any) -> Any:
        key = workload.key.replace("relu(", "add(0.0,").replace(" epilogue=relu", "")
        return compiled(self, Workload.parse(key), *rest)

    patch.setattr(CpuBackend, "compile", broken)


def test_the_first_wrong_iteration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([9, 8, 7, 3.5], np.float32)
    inputs = {"x": x}
    assert ts.compare(FALLING, database=None, inputs=inputs).clean
    without_relu(monkeypatch)
    report = ts.compare(FALLING, database=None, inputs=inputs)
    assert report.first_bad == "rows" and report.iteration is not None
    wrong = report.iteration
    assert wrong.iteration == (3,), "3.5 - 4 is the first below 0"
    assert (wrong.index[-1], wrong.ours, wrong.wanted) == (3, -0.5, 0.0)
    assert "goes wrong in iteration 3" in comparison_text(report)
    assert report.to_json()["iteration"]["kernel"] == wrong.kernel


@pytest.mark.parametrize(
    ("operator", "iteration", "said"),
    [("elementwise", (0,), "in iteration 0"), ("matmul", (), "before its loop")],
)
def test_of_an_lstm_the_kernel_is_named(
    operator: str, iteration: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering_without_a_tail(operator)(monkeypatch)
    wrong = ts.compare(SEQUENCE, database=None).iteration
    assert wrong is not None and wrong.iteration == iteration
    assert wrong.workload.startswith(operator) and wrong.sources == ("y",)
    assert said in wrong.sentence


def moving(change: Any) -> Any:
    """Moves of loops that are placed otherwise."""

    def broken(self: Any, *rest: Any, **named: Any) -> None:
        made = MoveStep.__new__(MoveStep)
        INIT(made, *rest, **named)
        changed = change(made)
        INIT(self, **{f.name: getattr(changed, f.name) for f in fields(MoveStep)})

    return broken


def a_row_on(move: Any) -> Any:
    """Rows are read one on."""
    away = Place(move.source.region, move.source.offset + move.source_step)
    return other(move, source=away)


def a_row_behind(move: Any) -> Any:
    """Rows are written one on."""
    away = Place(move.target.region, move.target.offset + move.target_step)
    return other(move, target=away)


def by_halves(move: Any) -> Any:
    """What is handed on is moved by half."""
    handed = " to " in move.name and move.nbytes > 4
    return other(move, nbytes=move.nbytes // 2) if handed else move


def other(move: Any, **changed: Any) -> Any:
    return SimpleNamespace(**{f.name: getattr(move, f.name) for f in fields(MoveStep)} | changed)


@pytest.mark.parametrize(
    ("model", "change", "iteration"),
    [
        ("lstm", a_row_on, 0), ("lstm", by_halves, 1), ("lstm", a_row_behind, 0),
        ("loop", by_halves, 1), ("loop", a_row_behind, 0),
    ],
)  # fmt: skip
def test_a_wrong_move_is_told_from_a_wrong_kernel(
    model: str, change: Any, iteration: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = SEQUENCE if model == "lstm" else FALLING
    inputs = None if model == "lstm" else {"x": np.array([9, 8, 7, 3.5], np.float32)}
    assert ts.bisect(proto, database=None, inputs=inputs, reduce=False).clean
    monkeypatch.setattr(MoveStep, "__init__", moving(change))
    report = ts.bisect(proto, database=None, inputs=inputs, reduce=False)
    assert report.finding is not None and report.finding.part == "linking"
    found = report.finding.details["iteration"]
    assert found["iteration"] == [iteration] and found["moved"] == report.finding.name
    assert f"in iteration {iteration}: its kernels are right" in report.finding.sentence


def test_a_bisection_names_the_kernel_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    without_relu(monkeypatch)
    inputs = {"x": np.array([9, 8, 7, 3.5], np.float32)}
    report = ts.bisect(FALLING, database=None, inputs=inputs, reduce=False)
    assert report.finding is not None and report.finding.part == "kernel"
    assert "goes wrong in iteration 3: kernel" in report.finding.sentence
