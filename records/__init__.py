"""The tuning database: what was tried, what came of it, and what was best (docs/database.md)."""

from typing import TYPE_CHECKING

from tilesmith.records.trials.record import Best, Job, TuningRecord, config_digest
from tilesmith.records.trials.toolchain import Toolchain

if TYPE_CHECKING:
    from tilesmith.records.database import Database

__all__ = [
    "Best",
    "Database",
    "Job",
    "Toolchain",
    "TuningRecord",
    "config_digest",
]


def __getattr__(name: str) -> object:
    """`Database` on first use: SQLAlchemy is not worth loading for the values alone."""
    if name == "Database":
        from tilesmith.records.database import Database

        return Database
    raise AttributeError(f"module 'tilesmith.records' has no attribute '{name}'")
