"""Jobs with a time limit, and what is told of where they are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from problems import TARGET, judge
from test_session import JUDGED, TASKS, NoisyHardware, simulator

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.measurement.runner import Candidate, RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session.progress import Progress
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions


def test_time_limit_is_kept() -> None:
    limited = TuneOptions(trials=None, time_limit_s=0.3)
    summary = tune(TASKS, TARGET, MemoryLedger(), [simulator()], limited, JUDGED)
    assert summary.reason == "the time limit is reached"


def test_no_more_is_measured_at_once_than_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, chunks = 0.0, []

    class Slow(SimulatorRunner):
        def measure(
            self, batch: Sequence[Candidate], cancel: CancelToken | None = None
        ) -> list[MeasureResult]:
            nonlocal now
            now += len(batch)
            chunks.append(len(batch))
            return super().measure(batch, cancel)

    monkeypatch.setattr("tilesmith.tuner.search.search.time.monotonic", lambda: now)
    runner = Slow(RunnerOptions(TARGET, judge=judge))
    limited = TuneOptions(trials=None, time_limit_s=30, seed=1)
    summary = tune(TASKS, TARGET, MemoryLedger(), [runner], limited, JUDGED)
    assert summary.reason == "the time limit is reached"
    assert 29 <= now <= 31 and max(chunks) > 1


def test_what_the_caller_took_to_prepare_counts_in_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilesmith.tuner.session.session.time.monotonic", lambda: 109.0)
    late = TuneOptions(trials=None, time_limit_s=8, started=100.0)
    ledger = MemoryLedger()
    summary = tune(TASKS, TARGET, ledger, [simulator()], late, JUDGED)
    assert summary.reason == "the time limit is reached" and not ledger.trials
    assert summary.wall_s == 9.0


def test_silent_phases_are_told_and_screening_is_not_called_trials() -> None:
    told: list[Progress] = []
    tune(
        TASKS[:1], TARGET, MemoryLedger(), [simulator(), NoisyHardware()],
        TuneOptions(trials=8, screening_trials=8), JUDGED, on_progress=told.append,
    )  # fmt: skip
    assert {(p.measured_by, p.screening) for p in told} == {
        ("simulator", True), ("hardware", False),
    }  # fmt: skip
    assert "measuring the best again, in turns" in {p.doing for p in told}
