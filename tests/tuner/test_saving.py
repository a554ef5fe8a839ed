"""A database that is deleted or replaced under a job, or away for good: no trial is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from problems import JUDGED, TARGET, judge
from tune_to_end import TASKS

from tilesmith.records.database import Database
from tilesmith.records.schema.faults import GoneError, UnavailableError
from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
from tilesmith.tuner.measurement.runner import RunnerOptions, runners
from tilesmith.tuner.session.progress import Progress
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.options import TuneOptions


def run(database: Database, disturb: Callable[[], object]) -> DatabaseLedger:
    """A job that is disturbed once it has ten trials."""
    ledger = DatabaseLedger.start(
        database, TARGET, 1, command="tune", seed=0, strategy="evolutionary"
    )

    def watch(progress: Progress) -> None:
        if progress.trials >= 10:
            disturb()

    runner = runners["simulator"](RunnerOptions(TARGET, judge=judge))
    tune(TASKS, TARGET, ledger, [runner], TuneOptions(trials=40), JUDGED, on_progress=watch)
    return ledger


@pytest.mark.parametrize("how", ["was deleted", "was replaced by another file"])
def test_the_trials_of_a_job_whose_database_vanished_are_in_a_file(
    how: str, tmp_path: Path
) -> None:
    path = tmp_path / "tuning.db"

    def vanish() -> None:
        if "replaced" in how:
            Database.open(str(tmp_path / "other.db")).close()
            (tmp_path / "other.db").rename(path)
        elif path.exists():
            path.unlink()

    with Database.open(str(path)) as database, pytest.raises(GoneError, match=how) as caught:
        run(database, vanish)
    saved = tmp_path / "tuning.db.job-1.jsonl"
    assert f"are in '{saved}', which 'tilesmith db import' reads" in str(caught.value)
    with Database.open(str(tmp_path / "new.db")) as again:
        report = again.import_lines(saved.read_text().splitlines())
        records = again.query(limit=None)
    assert report.added == len(records) > 10
    assert len({(r.workload_key, r.config) for r in records}) == len(records)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1, "saved once"


def test_what_a_full_disk_does_not_take_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit of a file's pages says what a full disk says."""
    path = tmp_path / "tuning.db"
    monkeypatch.chdir(tmp_path)

    def fill() -> None:
        with database.writing() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    with Database.open(str(path)) as database:
        with pytest.raises(JobError, match="the disk is full") as caught:
            run(database, fill)
        kept = {(r.workload_key, r.config) for r in database.query(limit=None)}
    saved = tmp_path / "tuning.db.job-1.jsonl"
    assert f"are in '{saved}', which" in str(caught.value)
    with Database.open(str(path)) as again:
        report = again.import_lines(saved.read_text().splitlines())
        records = again.query(limit=None)
    assert len(kept) >= 10 and report.added == len(records) - len(kept) > 0


def test_what_a_server_that_stays_away_lacks_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(str(tmp_path / "tuning.db")) as database:
        add = Database.add

        def away(self: Database, records: Any, *, job: int | None = None, **more: Any) -> None:
            if self is not database:
                return add(self, records, job=job, **more)
            raise UnavailableError("database 'x' cannot be reached")

        with pytest.raises(UnavailableError, match=r"(\d+) trials that it does not have") as caught:
            run(database, lambda: monkeypatch.setattr(Database, "add", away))
        monkeypatch.setattr(Database, "add", add)
        lines = (tmp_path / "tuning.db.job-1.jsonl").read_text().splitlines()
        assert f"; {len(lines) - 1} trials" in str(caught.value)
        before = database.stats()["trials"]
        assert database.import_lines(lines).added == len(lines) - 1
        assert database.stats()["trials"] == before + len(lines) - 1
