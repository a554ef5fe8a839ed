"""What a pack holds, as plain data and as rows of tables."""

from collections.abc import Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.capabilities.packs.revalidation import Trialled

Table = tuple[tuple[str, ...], list[tuple[object, ...]]]

_SCHEDULE = (
    "workload:record.workload_key target:record.target_identity threads:record.threads "
    "measured_by:record.result.measured_by input_layout:record.input_layout "
    "output_layout:record.output_layout config:record.config latency_s:latency default_s gain "
    "schedule:origin samples:record.result.samples created_at:record.created_at"
)


def pack_values(pack: Pack, schedules: bool) -> dict[str, Any]:
    """A pack as plain data.

    Args:
        schedules: with every schedule.
    """
    values = {
        "name": pack.name,
        "machines": [_machine(pack, machine) for machine in pack.machines],
        "schedules": len(pack.schedules),
    }
    if schedules:
        values["records"] = [schedule_values(one) for one in pack.schedules]
    return values


def schedule_values(one: PackedSchedule) -> dict[str, Any]:
    """A schedule as plain data, under the names of its line."""
    versions = one.record.toolchain.to_dict() if one.record.toolchain else {}
    return {**object_of(one, _SCHEDULE), "toolchain": versions}


def machine_rows(packs: Sequence[Pack]) -> Table:
    """A row for each machine of each pack."""
    header = "pack|machine|model|processor|vectors|measured by|schedules|gain|made|versions"
    rows = [_row(pack, machine) for pack in packs for machine in pack.machines]
    return tuple(header.split("|")), rows


def schedule_rows(packs: Sequence[Pack]) -> Table:
    """A row for each schedule."""
    header = "workload|target|threads|default us|us|gain|measured by|schedule|configuration"
    rows: list[tuple[object, ...]] = [
        (
            one.record.workload_key,
            one.record.target_identity,
            one.record.threads,
            f"{one.default_s * 1e6:.2f}",
            f"{one.latency * 1e6:.2f}",
            f"{one.gain:.2f}",
            one.record.result.measured_by,
            one.origin,
            str(one.record.config),
        )
        for pack in packs
        for one in pack.schedules
    ]
    return tuple(header.split("|")), rows


def revalidation_rows(outcomes: "Sequence[Trialled]") -> Table:
    """A row for each workload that was timed, those that gain most first."""
    rows: list[tuple[object, ...]] = []
    for one in sorted(outcomes, key=_speedup, reverse=True):
        default_us, best_us = (s and f"{s * 1e6:.2f}" for s in (one.default_s, one.best_s))
        speedup = f"{_speedup(one):.2f}" if _speedup(one) else ""
        rows.append((one.workload.key, default_us, best_us, speedup, one.kept, one.why))
    return ("workload", "default us", "us", "gain", "kept", "why not"), rows


def _speedup(one: "Trialled") -> float:
    return one.default_s / one.best_s if one.default_s and one.best_s else 0.0


def _row(pack: Pack, machine: PackedMachine) -> tuple[object, ...]:
    values = _machine(pack, machine)
    dates = values["since"], values["until"]
    return (
        pack.name,
        machine.identity,
        machine.model,
        values["processor"],
        values["instruction_set"],
        ", ".join(values["measured_by"]),
        values["schedules"],
        f"{values['gain']:.2f}",
        " to ".join(dict.fromkeys(date for date in dates if date)),
        ", ".join(values["versions"]),
    )


def _machine(pack: Pack, machine: PackedMachine) -> dict[str, Any]:
    """What a pack holds for one machine."""
    mine = [one for one in pack.schedules if one.record.target_identity == machine.identity]
    dates = sorted(f"{day:%Y-%m-%d}" for one in mine if (day := one.record.created_at))
    versions = {one.record.toolchain.tilesmith for one in mine if one.record.toolchain}
    target = machine.target
    return {
        "machine": machine.identity,
        "model": machine.model,
        "processor": target.text("isa.processor") if "isa.processor" in target else target.name,
        "instruction_set": target.text("isa.name") if "isa.name" in target else "",
        "schedules": len(mine),
        "measured_by": sorted({one.record.result.measured_by for one in mine}),
        "gain": geometric_mean(one.gain for one in mine),
        "since": dates[0] if dates else None,
        "until": dates[-1] if dates else None,
        "versions": sorted(version for version in versions if version),
    }
