"""The tuning database: what was tried, what came of it, and what was best (docs/database.md)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilesmith.records.database import Database
    from tilesmith.records.trials.record import Best, Job, TuningRecord, config_digest
    from tilesmith.records.trials.toolchain import Toolchain

__all__ = [
    "Best",
    "Database",
    "Job",
    "Toolchain",
    "TuningRecord",
    "config_digest",
]


def __getattr__(name: str) -> object:
    """On first use: SQLAlchemy is not worth loading for the values alone, nor these for a URL."""
    homes = {"Database": "database", "Toolchain": "trials.toolchain"}
    if name in __all__:
        home = homes.get(name, "trials.record")
        return getattr(import_module(f"tilesmith.records.{home}"), name)
    raise AttributeError(f"module 'tilesmith.records' has no attribute '{name}'")
