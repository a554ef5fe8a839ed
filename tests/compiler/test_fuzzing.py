"""Models that are wrong are refused in a sentence: a fixed number of cases, in every run.

`python -m benchmarks.fuzzing` goes through tens of thousands.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzzing import case, search, verdict
from benchmarks.mutants import mutant, seeds


@given(data=st.data())
def test_a_mutant_compiles_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    known = seeds()

    def choose(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    seed = known[choose(len(known))]
    verdict(mutant(seed, choose), tmp_path_factory.mktemp("mutant"), run=False)


def test_the_same_choices_give_the_same_model() -> None:
    before = [model.SerializeToString() for model in seeds()[:50]]
    assert [case(0, n) for n in range(20)] == [case(0, n) for n in range(20)]
    assert len({case(0, n) for n in range(20)}) > 15
    assert [model.SerializeToString() for model in seeds()[:50]] == before


def test_cases_of_all_kinds_come_to_a_sentence() -> None:
    """In children, since what is wrong may end a process."""
    found = search(seed=0, first=0, cases=150)
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
    found = search(0, 0, 4)
    assert found[1] == found[3] == "! the process died of signal 9"
    assert found[0].startswith("! KeyError")
    assert found[2].startswith("! KeyError")
