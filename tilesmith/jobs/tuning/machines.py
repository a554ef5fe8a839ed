"""The machine a job runs on: in the record, and whether it can measure for a target at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.tuner.machines.identity import Machine, lacks_instructions, this_machine, unfit

if TYPE_CHECKING:
    from tilesmith.jobs.pools import Fleet


def note(database: Database, machine: Machine) -> None:
    """Keep who a machine is."""
    database.note_machine(
        machine.name,
        host=machine.host,
        target=machine.identity,
        facts=machine.facts,
        calibration=machine.calibration,
    )


@contextmanager
def noting(database: Database, fleet: "Fleet | None", measures: bool) -> Iterator[None]:
    """Keep who the machines are that a job measures on, this one at its beginning, those of its
    workers at its end, however it ends.

    Args:
        measures: whether anything is timed at all.
    """
    if measures and fleet is None:
        note(database, this_machine(resolve_target(HOST)))
    try:
        yield
    finally:
        for machine in fleet.machines() if fleet is not None else ():
            note(database, machine)


def can_measure_here(target: Target) -> bool:
    """Whether this is the machine that a target describes."""
    return unfit(target, resolve_target(HOST)) is None


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
