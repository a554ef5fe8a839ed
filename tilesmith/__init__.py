"""Tilesmith's public Python API: everything a user needs is a name of this package.

Names are imported on first use (PEP 562), so that `import tilesmith` stays quick whatever the heavy
libraries behind it cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.executable import Executable
    from records import Database
    from search_space.config import Config
    from search_space.errors import (
        ConfigError,
        DatabaseError,
        DependencyError,
        InputError,
        JobError,
        ModelError,
        TargetError,
        TilesmithError,
        WorkloadError,
    )
    from search_space.target import Target
    from search_space.workload import Workload
    from tilesmith.api import compile, load, simulate, tune
    from tilesmith.targets import resolve_target

_HOMES = {
    "Config": "search_space.config",
    "ConfigError": "search_space.errors",
    "Database": "records",
    "DatabaseError": "search_space.errors",
    "DependencyError": "search_space.errors",
    "Executable": "compiler.executable",
    "InputError": "search_space.errors",
    "JobError": "search_space.errors",
    "ModelError": "search_space.errors",
    "Target": "search_space.target",
    "TargetError": "search_space.errors",
    "TilesmithError": "search_space.errors",
    "Workload": "search_space.workload",
    "WorkloadError": "search_space.errors",
    "compile": "tilesmith.api",
    "load": "tilesmith.api",
    "resolve_target": "tilesmith.targets",
    "simulate": "tilesmith.api",
    "tune": "tilesmith.api",
}

__all__ = [
    "Config",
    "ConfigError",
    "Database",
    "DatabaseError",
    "DependencyError",
    "Executable",
    "InputError",
    "JobError",
    "ModelError",
    "Target",
    "TargetError",
    "TilesmithError",
    "Workload",
    "WorkloadError",
    "compile",
    "load",
    "resolve_target",
    "simulate",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilesmith' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
