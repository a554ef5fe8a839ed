"""ONNX's own backend suite: a sample of it through compiled code, in which every operator has a
case, every case of operators that become kernels through the references of their templates, and
mutants of cases, which compile or are refused in a sentence.

`python benchmarks/onnx_suite.py` runs all of it by the code that comes of it, and
`python -m benchmarks.fuzzing` goes through tens of thousands of mutants. ONNX takes seconds to
compute its cases, once a process: what asks for them stands together here.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from benchmarks import fuzzing, onnx_suite
from benchmarks.onnx_suite import Outcome, Result, cases, run_case, sample
from benchmarks.subjects.mutants import mutant, seeds
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.graph_text import graph_text
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model

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


def _floats(case: Any) -> bool:
    inputs, outputs = case.data_sets[0]
    arrays = (*inputs, *outputs)
    return all(isinstance(a, np.ndarray) for a in arrays) and outputs[0].dtype == np.float32


def _with_constants(model: onnx.ModelProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    """The model as exporters write it: everything but the first input is a weight."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value, array in zip(model.graph.input[1:], inputs[1:], strict=False):
        changed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
    del changed.graph.input[1:]
    return changed


@pytest.mark.parametrize(("constants", "least"), [(False, 450), (True, 410)])
@pytest.mark.filterwarnings("ignore")
def test_operators_compute_what_the_standard_says(constants: bool, least: int) -> None:
    """By the references of kernels' templates, weights constant or not."""
    lowered = 0
    for case in filter(_floats, load_model_tests(kind="node")):
        inputs, outputs = case.data_sets[0]
        if constants and len(inputs) == 1:
            continue  # nothing would be another
        if "bernoulli" in case.name:
            continue  # draws other numbers
        model = _with_constants(case.model, inputs) if constants else case.model
        graph = prepared(import_model(model))
        verify(graph)
        if not any(node.kind == "kernel" for node in graph.nodes):
            continue
        lowered += 1
        names = [value.name for value in model.graph.input]
        found = run_reference(graph, dict(zip(names, inputs, strict=False)))
        for value, wanted in zip(model.graph.output, outputs, strict=True):
            message = f"{case.name}\n{graph_text(graph)}"
            np.testing.assert_allclose(found[value.name], wanted, 1e-3, 1e-5, err_msg=message)
    assert lowered > least


@given(data=st.data())
def test_a_mutant_compiles_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    known = seeds()

    def choose(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    seed = known[choose(len(known))]
    fuzzing.verdict(mutant(seed, choose), tmp_path_factory.mktemp("mutant"), run=False)


def test_the_same_choices_give_the_same_model() -> None:
    before = [model.SerializeToString() for model in seeds()[:50]]
    assert [fuzzing.case(0, n) for n in range(20)] == [fuzzing.case(0, n) for n in range(20)]
    assert len({fuzzing.case(0, n) for n in range(20)}) > 15
    assert [model.SerializeToString() for model in seeds()[:50]] == before


def test_cases_of_all_kinds_come_to_a_sentence() -> None:
    """In children, since what is wrong may end a process."""
    found = fuzzing.search(seed=0, first=0, cases=150)
    assert [f"{n}: {text}" for n, text in found.items() if text.startswith("!")] == []
    assert len(found) == 150
    kinds = Counter(text.partition(" (")[0] for text in found.values())
    assert kinds["refused"] > 20
    assert kinds["ran"] > 20


def test_what_dies_or_is_no_sentence_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dying(content: bytes, folder: Path, run: bool) -> str:
        if len(content) % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("x")

    monkeypatch.setattr("benchmarks.fuzzing.verdict", dying)
    monkeypatch.setattr("benchmarks.fuzzing.case", lambda seed, number: bytes(number))
    found = fuzzing.search(0, 0, 4)
    assert found[1] == found[3] == "! the process died of signal 9"
    assert found[0].startswith("! KeyError")
    assert found[2].startswith("! KeyError")
