"""Tilesmith's public Python API: everything a user needs is a name of this package.

Names are imported on first use (PEP 562), so that `import tilesmith` stays quick whatever the heavy
libraries behind it cost. It is the front door, above everything: it alone, with `command_line`,
names capabilities, and a name of one that was left out of an installation is refused in one
sentence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilesmith.beside_torch import tell_torch

if TYPE_CHECKING:
    from tilesmith.api import compile, load, replay, simulate, tune
    from tilesmith.capabilities.exploration.exploring import explore
    from tilesmith.capabilities.exploration.sweeps.sweeping import sweep
    from tilesmith.capabilities.fault_finding.numerics import bisect, compare
    from tilesmith.capabilities.planning.serving.asking import plan
    from tilesmith.capabilities.profile.profiling import profile
    from tilesmith.capabilities.pytorch.api import from_torch, torch_model
    from tilesmith.capabilities.quantisation.api import quantize
    from tilesmith.capabilities.sharding.jobs import shard
    from tilesmith.capabilities.stablehlo.api import from_jax, from_stablehlo, jax_model
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.jobs.compilation.shipping import emit_library
    from tilesmith.jobs.evaluation.benching import bench
    from tilesmith.jobs.inspection.measuring import measure
    from tilesmith.jobs.inspection.space_analysis import space
    from tilesmith.jobs.subjects.targets import resolve_target
    from tilesmith.records import Database
    from tilesmith.search_space.hardware.target import Target
    from tilesmith.search_space.spaces.config import Config
    from tilesmith.search_space.support.errors import (
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
    from tilesmith.search_space.workloads.workload import Workload

__version__ = "0.1.0"

_HOMES = {
    "Config": "tilesmith.search_space.spaces.config",
    "ConfigError": "tilesmith.search_space.support.errors",
    "Database": "tilesmith.records",
    "DatabaseError": "tilesmith.search_space.support.errors",
    "DependencyError": "tilesmith.search_space.support.errors",
    "Executable": "tilesmith.compiler.runtime.executable",
    "VaryingExecutable": "tilesmith.compiler.varying.executable",
    "InputError": "tilesmith.search_space.support.errors",
    "JobError": "tilesmith.search_space.support.errors",
    "ModelError": "tilesmith.search_space.support.errors",
    "Target": "tilesmith.search_space.hardware.target",
    "TargetError": "tilesmith.search_space.support.errors",
    "TilesmithError": "tilesmith.search_space.support.errors",
    "Workload": "tilesmith.search_space.workloads.workload",
    "WorkloadError": "tilesmith.search_space.support.errors",
    "bench": "tilesmith.jobs.evaluation.benching",
    "bisect": "tilesmith.capabilities.fault_finding.numerics",
    "compare": "tilesmith.capabilities.fault_finding.numerics",
    "compile": "tilesmith.api",
    "emit_library": "tilesmith.jobs.compilation.shipping",
    "explore": "tilesmith.capabilities.exploration.exploring",
    "from_jax": "tilesmith.capabilities.stablehlo.api",
    "from_stablehlo": "tilesmith.capabilities.stablehlo.api",
    "from_torch": "tilesmith.capabilities.pytorch.api",
    "jax_model": "tilesmith.capabilities.stablehlo.api",
    "load": "tilesmith.api",
    "measure": "tilesmith.jobs.inspection.measuring",
    "plan": "tilesmith.capabilities.planning.serving.asking",
    "profile": "tilesmith.capabilities.profile.profiling",
    "quantize": "tilesmith.capabilities.quantisation.api",
    "replay": "tilesmith.api",
    "resolve_target": "tilesmith.jobs.subjects.targets",
    "shard": "tilesmith.capabilities.sharding.jobs",
    "simulate": "tilesmith.api",
    "space": "tilesmith.jobs.inspection.space_analysis",
    "sweep": "tilesmith.capabilities.exploration.sweeps.sweeping",
    "torch_model": "tilesmith.capabilities.pytorch.api",
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
    home = _HOMES[name]
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        from tilesmith.search_space.support.extensions import left_out

        raise left_out(error, f"'tilesmith.{name}'") or error from None


def __dir__() -> list[str]:
    return __all__
