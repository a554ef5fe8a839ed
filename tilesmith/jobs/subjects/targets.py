"""Which hardware a user means: `cpu` (this machine), a shipped name, or a TOML file, with
settings.

The one place where target names are resolved, for the command line and the Python API alike.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tilesmith.search_space.hardware.target import (
    HOST,
    Fact,
    FactValue,
    Target,
    load_target,
    target_names,
)
from tilesmith.search_space.ir.family import families
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.support.suggestions import did_you_mean
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

_MOST_ELEMENTS = 1 << 40


def _of_known_family(target: Target) -> Target:
    """The target; `TargetError` if no family of that name is installed."""
    if target.family not in families:
        raise TargetError(
            f"target '{target.name}' is of the unknown family '{target.family}'; one of "
            f"{', '.join(families)} is expected{did_you_mean(target.family, list(families))}"
        )
    return target


def resolve_target(
    target: str | Target,
    settings: Mapping[str, str | FactValue] | None = None,
    *,
    calibrate: bool = False,
    database: str | None = None,
) -> Target:
    """The target a user named.

    Args:
        target: `cpu`, `cpu:neon` (this machine with another instruction set), the name of a shipped
            target, a path ending in `.toml`, or a `Target`.
        settings: facts to change, by dotted name: `{"sbuf.mib": 48}`.
        calibrate: for `cpu`, take the microbenchmarks (some seconds, once for each machine) that
            its simulator rests on, if they have not been kept yet. Kept ones are always used.
        database: where a target of another name may be on record: by its identity, or by the name
            of a machine that measured for it.

    Raises:
        TargetError: unknown name, bad file, unknown setting, or a value out of range.
    """
    from tilesmith.simulator import simulators

    if isinstance(target, Target):
        resolved = target
    elif target == HOST:
        from tilesmith.codegen.host.machine import host_target

        resolved = host_target()
        resolved = simulators[resolved.family].calibrated(resolved, measure=calibrate)
    elif target.startswith(f"{HOST}:"):
        others = {"isa.name": target.partition(":")[2], **(settings or {})}
        return resolve_target(HOST, others, calibrate=calibrate)
    else:
        resolved = _recorded(target, database) or _of_known_family(load_target(target))
    if not settings:
        return resolved
    simulator = simulators.find(resolved.family)
    if simulator is None:
        return resolved.with_settings(settings)
    return simulator.with_settings(resolved, settings)


def _recorded(name: str, location: str | None) -> Target | None:
    """A target that a database knows, if it is neither known here nor a file.

    By the name of a machine it comes with that machine's calibration.
    """
    if location is None or name in target_names() or name.endswith(".toml"):
        return None
    if "://" not in location and not Path(location).exists():
        return None
    from tilesmith.records.database import Database

    with Database.open(location, create=False) as opened:
        machine = next((one for one in opened.machines() if one.name == name), None)
        recorded = opened.target_facts(name if machine is None else machine.target)
    if recorded is None or machine is None or not machine.calibration:
        return recorded
    facts = dict(recorded.facts)
    for key, value in machine.calibration.items():
        known = facts.get(key, Fact(value, machine.name, "F", calibratable=True))
        facts[key] = replace(known, value=value)
    return Target.of(recorded.name, recorded.family, facts, recorded.doc)


def check_schedulable(
    workloads: Iterable[Workload], target: Target, simulated: bool = False
) -> None:
    """Check that all operators can be scheduled for a target, or (`simulated`) be simulated on it.

    Raises:
        TargetError: the target is incomplete, or it has no schedule for an operator.
        WorkloadError: it has one, but not for a workload's parameters or dtypes; or a workload is
            larger than any machine's memory.
    """
    from tilesmith.simulator import check_target, needs_schedule

    check_target(target)
    for workload in workloads:
        _check_size(workload)
        if simulated and not needs_schedule(workload, target):
            continue
        scheduler_of(workload, target)


def _check_size(workload: Workload) -> None:
    """Addresses and counts of operations are numbers of 64 bits; what exceeds them was mistyped."""
    template = template_of(workload.operator)
    for operand in (*template.inputs(workload), template.output(workload)):
        extents = [extent for extent in operand.extents if isinstance(extent, int)]
        if math.prod(extents) > _MOST_ELEMENTS:
            raise WorkloadError(
                f"operand '{operand.name}' of '{workload}' has the shape {shape_text(extents)}, "
                f"more than {_MOST_ELEMENTS:,} elements; its sizes are wrong"
            )


def all_targets() -> list[Target]:
    """This machine, then every shipped target."""
    return [resolve_target(name) for name in (HOST, *target_names())]
