"""Which hardware a user means: `cpu` (this machine), a shipped name, or a TOML file, with
settings.

The one place where target names are resolved, for the command line and the Python API alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilesmith.search_space.scheduler import scheduler_of
from tilesmith.search_space.target import HOST, FactValue, Target, load_target, target_names
from tilesmith.search_space.workload import Workload


def resolve_target(
    target: str | Target,
    settings: Mapping[str, str | FactValue] | None = None,
    *,
    calibrate: bool = False,
) -> Target:
    """The target a user named.

    Args:
        target: `cpu`, the name of a shipped target, a path ending in `.toml`, or a `Target`.
        settings: facts to change, by dotted name: `{"sbuf.mib": 48}`.
        calibrate: for `cpu`, take the microbenchmarks (half a second, once for each machine) that
            its simulator rests on, if they have not been kept yet. Kept ones are always used.

    Raises:
        TargetError: unknown name, bad file, unknown setting, or a value out of range.
    """
    from tilesmith.simulator import simulators

    if isinstance(target, Target):
        found = target
    elif target == HOST:
        from tilesmith.codegen.host import host_target

        found = host_target()
        found = simulators[found.family].calibrated(found, measure=calibrate)
    else:
        found = load_target(target)
    if not settings:
        return found
    simulator = simulators.find(found.family)
    if simulator is None:
        return found.with_settings(settings)
    return simulator.with_settings(found, settings)


def check_schedulable(
    workloads: Iterable[Workload], target: Target, simulated: bool = False
) -> None:
    """Check that all operators can be scheduled for a target, or (`simulated`) be simulated on it.

    Raises:
        TargetError: the target is incomplete, or it has no schedule for an operator.
        WorkloadError: it has one, but not for a workload's parameters or dtypes.
    """
    from tilesmith.simulator import check_target, needs_schedule

    check_target(target)
    for workload in workloads:
        if simulated and not needs_schedule(workload, target):
            continue
        scheduler_of(workload, target)


def all_targets() -> list[Target]:
    """This machine, then every shipped target."""
    return [resolve_target(name) for name in (HOST, *target_names())]
