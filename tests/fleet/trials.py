"""What the tests of fleets look at: trials of a database, and processes of workers."""

from __future__ import annotations

import json
from pathlib import Path

from tilesmith.records import Database
from tilesmith.tuner.fleet.keeper import descendants


def rows(path: Path) -> list[str]:
    """Every trial as its line of an export, without times and hosts."""
    with Database.open(str(path)) as database:
        trials = [json.loads(line) for line in list(database.export_lines())[1:]]
    for trial in trials:
        for name in ("created_at", "elapsed_s", "host"):
            trial.pop(name, None)
    return [json.dumps(trial, sort_keys=True) for trial in trials]


def labourers(driver: int) -> list[int]:
    """Processes of workers below a process."""
    found = []
    for process in descendants(driver):
        title = Path(f"/proc/{process}/cmdline")
        if title.exists() and title.read_bytes().startswith(b"ray::WorkerActor"):
            found.append(process)
    return found
