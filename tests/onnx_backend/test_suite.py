"""A sample of ONNX's own backend suite through compiled code: every operator has a case in it.

`python benchmarks/onnx_suite.py` runs all of it.
"""

from __future__ import annotations

import pytest

from benchmarks import onnx_suite
from benchmarks.onnx_suite import Outcome, Result, cases, run_case, sample

PARTS = 16
"""Of the sample. Its cases are no parameters, for ONNX computes all of its suite to name any: that
is left to the one process that runs them."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore")
def test_cases_of_onnx_pass(part: int) -> None:
    outcomes = [run_case(case.name) for case in sample()[part::PARTS]]
    assert len(outcomes) > 10
    assert not [outcome for outcome in outcomes if outcome.reason]


def test_every_operator_is_in_the_sample() -> None:
    """All but those whose every case is excluded."""
    known = {name for case in cases() if not case.exclusion for name in case.operators}
    assert known == {name for case in sample() for name in case.operators}
    assert len(known) > 190


def test_the_whole_suite_is_known() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))
    assert len(names) >= 1900


def test_an_excluded_case_that_passes_is_reported() -> None:
    excluded = next(case for case in cases() if case.exclusion)
    assert Result(excluded, Outcome(excluded.name, "another number", 0.1)).verdict == "excluded"
    assert Result(excluded, Outcome(excluded.name, "", 0.1)).verdict == "stale"
    possible = sample()[0]
    assert Result(possible, Outcome(possible.name, "", 0.1)).verdict == "passed"
    assert Result(possible, Outcome(possible.name, "wrong", 0.1)).verdict == "failed"


@pytest.mark.filterwarnings("ignore")
def test_excluded_cases_do_not_pass() -> None:
    """One of each reason, so that the list does not outlive what it is for."""
    for why in set(onnx_suite.EXCLUDED.values()):
        named = [case for case in cases() if case.exclusion == why]
        assert named, why
        assert any(not run_case(case.name).passed for case in named), why


@pytest.mark.filterwarnings("ignore")
def test_a_case_that_kills_its_process_is_a_failure_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os
    import time

    def fake(name: str) -> Outcome:
        if name == "test_abs":
            os._exit(7)
        if name == "test_acos":
            time.sleep(60)
        return Outcome(name, "", 0.0)

    monkeypatch.setattr(onnx_suite, "run_case", fake)
    chosen = [c for c in cases() if c.name in ("test_abs", "test_acos", "test_add", "test_and2d")]
    found = {o.name: o.reason for o in onnx_suite.run_cases(chosen, jobs=2, timeout=1.0)}
    assert found == {
        "test_abs": "died: exit code 7",
        "test_acos": "took more than 1 s",
        "test_add": "",
        "test_and2d": "",
    }
