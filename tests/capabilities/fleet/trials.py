"""What the tests of fleets compare: trials of a database."""

from __future__ import annotations

import json
from pathlib import Path

from tilesmith.records import Database


def rows(path: Path) -> list[str]:
    """Every trial as its line of an export, without times and hosts."""
    with Database.open(str(path)) as database:
        trials = [json.loads(line) for line in list(database.export_lines())[1:]]
    for trial in trials:
        for name in ("created_at", "elapsed_s", "host"):
            trial.pop(name, None)
    return [json.dumps(trial, sort_keys=True) for trial in trials]
