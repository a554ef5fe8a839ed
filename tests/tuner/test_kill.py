"""`kill -9` in the middle of a job loses nothing finished, and resuming ends as if never killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from problems import JUDGED, TARGET, judge
from tune_to_end import OPTIONS, TASKS

from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.tuner.measurement.runner import RunnerOptions, runners
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.ledger import MemoryLedger

SCRIPT = Path(__file__).with_name("tune_to_end.py")


def trials(path: Path) -> list[tuple[str, str]]:
    with Database.open(str(path)) as database:
        records = database.query(Filter(), sort="oldest", limit=None)
    return [(record.workload_key, record.config.key) for record in records]


def start(path: Path, slowness: float, most: int) -> subprocess.Popen[bytes]:
    folders = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    words = [sys.executable, SCRIPT, path, str(slowness), str(most)]
    return subprocess.Popen(words, env=environment)


def test_a_job_killed_again_and_again_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = MemoryLedger()
    runner = runners["simulator"](RunnerOptions(TARGET, judge=judge))
    tune(TASKS, TARGET, whole, [runner], OPTIONS, JUDGED)
    path = tmp_path / "tuning.db"
    with Database.open(str(path)) as database:
        for enough in (10, 26):
            process = start(path, slowness=0.3, most=enough + 12)
            while database.stats()["trials"] < enough:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.1)
            process.kill()
            process.wait()
            assert enough <= database.stats()["trials"] < OPTIONS.trials
    assert start(path, slowness=0.0, most=OPTIONS.trials + 1).wait() == 0
    expected = [(entry.workload.key, entry.config.key) for entry in whole.trials]
    assert trials(path) == expected
