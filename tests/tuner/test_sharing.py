"""What one of two jobs measured the other does not measure again, and learns from all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from problems import JUDGED, TARGET, judge
from tune_to_end import TASKS

from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
from tilesmith.tuner.measurement.runner import Candidate, Runner, RunnerOptions, runners
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions

Trials = set[tuple[str, str]]


def counting() -> tuple[Runner, list[Candidate]]:
    """The simulator, and what it was asked to measure."""
    runner, asked = runners["simulator"](RunnerOptions(TARGET, judge=judge)), []
    real = runner.measure

    def measure(
        batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        asked.extend(batch)
        return real(batch, cancel)

    runner.measure = measure  # type: ignore[method-assign]
    return runner, asked


def started(database: Database, seed: int) -> DatabaseLedger:
    return DatabaseLedger.start(
        database, TARGET, 1, command="tune", seed=seed, strategy="evolutionary"
    )


@pytest.mark.parametrize("in_flight", [0, 2])
def test_jobs_at_the_same_time_share_what_they_measure(in_flight: int, tmp_path: Path) -> None:
    options = TuneOptions(trials=40, strategy="exhaustive", in_flight=in_flight)
    alone = MemoryLedger()
    tune(TASKS, TARGET, alone, [runners["simulator"](RunnerOptions(TARGET, judge=judge))], options,
         JUDGED)  # fmt: skip
    with Database.open(str(tmp_path / "tuning.db")) as database:
        second, first = started(database, 7), started(database, 7)
        runner, asked = counting()
        tune(TASKS, TARGET, first, [runner], options, JUDGED)
        assert len(asked) == 40
        runner, again = counting()
        summary = tune(TASKS, TARGET, second, [runner], options, JUDGED)
        assert again == [], "it proposes what the first has measured"
        assert summary.trials == 40, "what was taken over counts, and was learnt from"
        records = database.query(limit=None)
        assert {record.job for record in records} == {first.job}
        found = {(record.workload_key, record.config.key) for record in records}
        expected = {(e.workload.key, e.config.key) for e in alone.trials}
        assert found == expected and len(records) == 40


def test_jobs_of_other_seeds_measure_what_is_new_alone(tmp_path: Path) -> None:
    with Database.open(str(tmp_path / "tuning.db")) as database:
        second, first = started(database, 1), started(database, 0)
        for ledger, seed in ((first, 0), (second, 1)):
            runner, asked = counting()
            options = TuneOptions(trials=60, seed=seed)
            tune(TASKS, TARGET, ledger, [runner], options, JUDGED)
            rows = database.query(Filter(job=ledger.job), limit=None)
            assert len(rows) == len(asked)
        assert len(asked) < 60, "the defaults at least were known"
        records = database.query(limit=None)
        assert len({(r.workload_key, r.config) for r in records}) == len(records)
