"""Tilesmith's public Python API: everything a user needs is a name of this package.

Names are imported on first use (PEP 562), so that `import tilesmith` stays quick whatever the heavy
libraries behind it cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilesmith.beside_torch import tell_torch

if TYPE_CHECKING:
    from tilesmith.api import compile, load, quantize, replay, simulate, tune
    from tilesmith.compiler.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.exploration.exploring import explore
    from tilesmith.exploration.sweeping import sweep
    from tilesmith.frameworks import from_jax, from_stablehlo, from_torch, jax_model, torch_model
    from tilesmith.jobs.benching import bench
    from tilesmith.jobs.measuring import measure
    from tilesmith.jobs.numerics import bisect, compare
    from tilesmith.jobs.profiling import profile
    from tilesmith.jobs.sharding import shard
    from tilesmith.jobs.shipping import emit_library
    from tilesmith.jobs.space_analysis import space
    from tilesmith.jobs.targets import resolve_target
    from tilesmith.planning.serving.asking import plan
    from tilesmith.records import Database
    from tilesmith.search_space.errors import (
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
    from tilesmith.search_space.spaces.config import Config
    from tilesmith.search_space.target import Target
    from tilesmith.search_space.workload import Workload

__version__ = "0.1.0"

_HOMES = {
    "Config": "tilesmith.search_space.spaces.config",
    "ConfigError": "tilesmith.search_space.errors",
    "Database": "tilesmith.records",
    "DatabaseError": "tilesmith.search_space.errors",
    "DependencyError": "tilesmith.search_space.errors",
    "Executable": "tilesmith.compiler.executable",
    "VaryingExecutable": "tilesmith.compiler.varying.executable",
    "InputError": "tilesmith.search_space.errors",
    "JobError": "tilesmith.search_space.errors",
    "ModelError": "tilesmith.search_space.errors",
    "Target": "tilesmith.search_space.target",
    "TargetError": "tilesmith.search_space.errors",
    "TilesmithError": "tilesmith.search_space.errors",
    "Workload": "tilesmith.search_space.workload",
    "WorkloadError": "tilesmith.search_space.errors",
    "bench": "tilesmith.jobs.benching",
    "bisect": "tilesmith.jobs.numerics",
    "compare": "tilesmith.jobs.numerics",
    "compile": "tilesmith.api",
    "emit_library": "tilesmith.jobs.shipping",
    "explore": "tilesmith.exploration.exploring",
    "from_jax": "tilesmith.frameworks",
    "from_stablehlo": "tilesmith.frameworks",
    "from_torch": "tilesmith.frameworks",
    "jax_model": "tilesmith.frameworks",
    "load": "tilesmith.api",
    "measure": "tilesmith.jobs.measuring",
    "plan": "tilesmith.planning.serving.asking",
    "profile": "tilesmith.jobs.profiling",
    "quantize": "tilesmith.api",
    "replay": "tilesmith.api",
    "resolve_target": "tilesmith.jobs.targets",
    "shard": "tilesmith.jobs.sharding",
    "simulate": "tilesmith.api",
    "space": "tilesmith.jobs.space_analysis",
    "sweep": "tilesmith.exploration.sweeping",
    "torch_model": "tilesmith.frameworks",
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
    "VaryingExecutable",
    "Workload",
    "WorkloadError",
    "bench",
    "bisect",
    "compare",
    "compile",
    "emit_library",
    "explore",
    "from_jax",
    "from_stablehlo",
    "from_torch",
    "jax_model",
    "load",
    "measure",
    "plan",
    "profile",
    "quantize",
    "replay",
    "resolve_target",
    "shard",
    "simulate",
    "space",
    "sweep",
    "torch_model",
    "tune",
]

tell_torch()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilesmith' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
