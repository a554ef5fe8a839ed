"""Counting a job's trials bit by bit, against the report that reads them all at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the live page's libraries are not installed")

from tests.capabilities.dashboard.conftest import LATER, PRODUCT, configs, trial
from tilesmith.capabilities.dashboard.data import tally as module
from tilesmith.capabilities.dashboard.data.progress import JobProgress
from tilesmith.capabilities.dashboard.data.tally import JobTally
from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import Target


@pytest.mark.parametrize("seed", range(4))
def test_any_history_is_counted_as_the_report_does(
    tmp_path: Path, cpu: Target, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    rng = random.Random(seed)
    known = [(w, config) for w in (PRODUCT, LATER) for config in configs(cpu, w, 5)]
    tally = JobTally(1)
    with Database.open(str(tmp_path / "t.db")) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random", targets=[cpu])
        for _ in range(12):
            drawn = [rng.choice(known) for _ in range(rng.randint(1, 9))]
            latencies = [rng.choice([None, *range(2, 30)]) for _ in drawn]
            database.add(
                [trial(cpu, w, c, us) for (w, c), us in zip(drawn, latencies, strict=True)], job=1
            )
            tally.advance(database, rng.choice([5, 1000]))
        tally.advance(database, 1000)
        assert tally.complete
        report = gather(database, 1)
    assert (tally.trials, tally.failed) == (
        report.trials, sum(task.failed for task in report.tasks)
    )  # fmt: skip
    ours = {task.name.workload: task for task in tally.tasks.values()}
    assert {f.status: f.count for f in report.failures} == {
        status: failure.count for status, failure in tally.failures.items()
    }
    for theirs in report.tasks:
        task = ours[theirs.workload]
        assert (task.trials, task.failed) == (theirs.trials, theirs.failed)
        assert (task.default_s, task.best_s) == (theirs.default_s, theirs.best_s)


def test_what_a_job_tells_is_read_with_care() -> None:
    told = JobProgress.of(
        {
            "trials": 30,
            "trials_limit": 60,
            "trials_per_s": 2.5,
            "left_s": 12,
            "tasks": [
                {"workload": "a", "weight": 2, "default_us": 10.0, "best_us": 5.0},
                {"workload": "b", "weight": 1, "default_us": 10.0, "best_us": 10.0},
                {"workload": "c", "weight": 9, "default_us": 10.0, "best_us": None},
                "no task",
            ],
        }
    )
    assert (told.trials, told.limit, told.rate, told.left_s) == (30, 60, 2.5, 12.0)
    assert told.gain == 1.5
    assert told.weights == {"a": 2.0, "b": 1.0, "c": 9.0}
    hostile = {"trials": "<b>", "left_s": -1, "trials_limit": True, "trials_per_s": 1e300}
    for nonsense in ([], "x", None, hostile, {"tasks": {"a": 1}}, {"tasks": [{"weight": []}]}):
        assert JobProgress.of(nonsense) == JobProgress()
