"""A fixed part of the sweep over operators, opsets and element types, and what the sweep says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from benchmarks import operator_sweep
from benchmarks.operator_sweep import Case, outcome, variants
from tilesmith.compiler.host.runtime import ENVIRONMENT

X = np.array([[1.5, -2, 0, 3], [0.25, 7, -1, 2]], np.float32)
SAMPLE = [
    Case("add", helper.make_node("Add", ["x", "z"], ["y"]), {"x": X, "z": X[:1] + 1}),
    Case("div", helper.make_node("Div", ["x", "z"], ["y"]), {"x": X, "z": X}),
    Case("relu", helper.make_node("Relu", ["x"], ["y"]), {"x": X}),
    Case(
        "squeeze",
        helper.make_node("Squeeze", ["x", "axes"], ["y"]),
        {"x": X[None], "axes": np.array([0])},
    ),
    Case(
        "clip",
        helper.make_node("Clip", ["x", "low", "high"], ["y"]),
        {"x": X, "low": np.array(-1, np.float32), "high": np.array(2, np.float32)},
    ),
]
"""Attributes that became inputs, types that were added, kernels and the host."""


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_every_opset_and_type_agrees(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "reference")
    found = [outcome(*variant) for variant in list(variants(case))[::3]]
    verdicts = {entry.verdict for entry in found}
    assert verdicts <= {"agree", "peer cannot"}, [e for e in found if e.verdict != "agree"]
    assert sum(entry.verdict == "agree" for entry in found) >= 3
    assert any(entry.native for entry in found)


def test_a_difference_is_named() -> None:
    assert operator_sweep._difference(X, X) == ""
    assert "first 1.5, theirs 2" in operator_sweep._difference(X, X + np.float32(0.5))
    assert "dtype" in operator_sweep._difference(X, X.astype(np.float64))
    assert "shape" in operator_sweep._difference(X, X.T)


def test_cases_have_arrays() -> None:
    """Inputs that cases give as protos are read, and scalars stay arrays."""
    for operator in ("Cast", "CastLike"):
        for case in operator_sweep.cases()[operator]:
            assert all(value.dtype != object for value in case.inputs.values())
            assert next(variants(case))
    scalar = operator_sweep._converted(np.array(2.5, np.float32), np.dtype(np.uint8))
    assert isinstance(scalar, np.ndarray)
