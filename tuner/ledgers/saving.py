"""What a job has in memory when its database takes no more: a file that `db import` reads."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilesmith.records.database import Database
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.support.errors import TilesmithError


def save(database: Database, job: int, records: Sequence[TuningRecord]) -> Path | None:
    """Write trials in the exchange format; where, or None if nowhere could be written.

    Beside an SQLite database if its folder is still there, else in the working folder, else among
    temporary files. A file that is there is never overwritten.
    """
    beside = [database.path.parent] if database.path is not None else []
    name = database.path.name if database.path is not None else "tilesmith"
    try:
        lines = _exported(database, records)
    except (OSError, TilesmithError):  # no room for temporary files either
        return None
    for folder in (*beside, Path.cwd(), Path(tempfile.gettempdir())):
        for number in range(1000):
            path = folder / f"{name}.job-{job}{f'-{number}' if number else ''}.jsonl"
            try:
                with path.open("x") as file:
                    file.writelines(f"{line}\n" for line in lines)
            except FileExistsError:
                continue
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                break
            return path.resolve()
    return None


def _exported(database: Database, records: Sequence[TuningRecord]) -> list[str]:
    """The lines of an export, by way of a database of their own, so that one place writes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/saved.db"
        with Database.open(path, toolchain=database.toolchain) as saved:
            saved.add([replace(record, job=None) for record in records])
            return list(saved.export_lines())


def sentence(error: TilesmithError, path: Path | None, count: int) -> str:
    """What is said of a database that takes no more."""
    if path is None:
        return f"{error}; {count} trials that it does not have could be saved nowhere"
    return (
        f"{error}; {count} trials that it does not have are in '{path}', which "
        "'tilesmith db import' reads"
    )
