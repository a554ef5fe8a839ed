"""The machine a job runs on: in the record, and whether it can measure for a target at all."""

from __future__ import annotations

from tilesmith.jobs.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.search_space.errors import TargetError
from tilesmith.search_space.target import HOST, Target
from tilesmith.tuner.machines.fitness import lacks_instructions
from tilesmith.tuner.machines.identity import Machine, this_machine


def note(database: Database, machine: Machine) -> None:
    """Keep who a machine is."""
    database.note_machine(
        machine.name,
        host=machine.host,
        target=machine.identity,
        facts=machine.facts,
        calibration=machine.calibration,
    )


def note_this_machine(database: Database) -> None:
    """Keep who the machine is that this process runs on."""
    note(database, this_machine(resolve_target(HOST)))


def check_measurable_here(target: Target) -> None:
    """Check that this machine has the instructions of a target.

    Raises:
        TargetError: it has not; the sentence says what it lacks.
    """
    host = resolve_target(HOST)
    if target.family != host.family:
        return
    reason = lacks_instructions(target, host)
    if reason is not None:
        name = this_machine().name
        raise TargetError(
            f"target '{target.name}' cannot be measured here: this machine ({name}) {reason}; "
            "simulate it with --measure simulator, or name workers that are such machines"
        )
