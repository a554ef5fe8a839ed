"""Tilesmith's public Python API: everything a user needs is a name of this package.

Names are imported on first use (PEP 562), so that `import tilesmith` stays quick whatever the heavy
libraries behind it cost. It is the front door, above everything: it alone, with `command_line`,
names capabilities, and a name of one that was left out of an installation is refused in one
sentence.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilesmith.beside_torch import tell_torch

if TYPE_CHECKING:
    from tilesmith.api import compile, load, replay, simulate, tune
    from tilesmith.capabilities.exploration.job import explore
    from tilesmith.capabilities.exploration.sweeps.sweeping import sweep
    from tilesmith.capabilities.fault_finding.numerics import bisect, compare
    from tilesmith.capabilities.nki.api import nki
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

_PUBLIC = {
    "tilesmith.api": "compile load replay simulate tune",
    "tilesmith.capabilities.exploration.job": "explore",
    "tilesmith.capabilities.exploration.sweeps.sweeping": "sweep",
    "tilesmith.capabilities.fault_finding.numerics": "bisect compare",
    "tilesmith.capabilities.nki.api": "nki",
    "tilesmith.capabilities.planning.serving.asking": "plan",
    "tilesmith.capabilities.profile.profiling": "profile",
    "tilesmith.capabilities.pytorch.api": "from_torch torch_model",
    "tilesmith.capabilities.quantisation.api": "quantize",
    "tilesmith.capabilities.sharding.jobs": "shard",
    "tilesmith.capabilities.stablehlo.api": "from_jax from_stablehlo jax_model",
    "tilesmith.compiler.runtime.executable": "Executable",
    "tilesmith.compiler.varying.executable": "VaryingExecutable",
    "tilesmith.jobs.compilation.shipping": "emit_library",
    "tilesmith.jobs.evaluation.benching": "bench",
    "tilesmith.jobs.inspection.measuring": "measure",
    "tilesmith.jobs.inspection.space_analysis": "space",
    "tilesmith.jobs.subjects.targets": "resolve_target",
    "tilesmith.records": "Database",
    "tilesmith.search_space.hardware.target": "Target",
    "tilesmith.search_space.spaces.config": "Config",
    "tilesmith.search_space.support.errors": "ConfigError DatabaseError DependencyError InputError "
    "JobError ModelError TargetError TilesmithError WorkloadError",
    "tilesmith.search_space.workloads.workload": "Workload",
}
"""Public names by the module that has them."""

_HOMES = {name: home for home, names in _PUBLIC.items() for name in names.split()}

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
    "nki",
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
