"""`tilesmith db machines`: who measured, how much, and how far each is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import opened_at, with_database_and_json
from tilesmith.display.output import print_json

if TYPE_CHECKING:
    from tilesmith.records.opened.machines import MachineReport


@click.command(cls=Explained)
@with_database_and_json
def machines(database: str, as_json: bool) -> None:
    """Machines that measured: what they are, trials, pace, state (why one was set aside)."""
    from tilesmith.commands.db.tables import table

    with opened_at(database) as opened:
        reports = opened.machines()
    if as_json:
        print_json({"machines": [_values(machine) for machine in reports]})
        return
    rows = [
        (
            machine.name,
            machine.target,
            machine.facts.get("model", ""),
            machine.facts.get("cores", ""),
            machine.trials,
            machine.failures,
            None if machine.pace is None else f"{machine.pace:.3f}",
            machine.state,
            machine.message,
        )
        for machine in reports
    ]
    header = "machine|target|processor|cores|trials|failed|pace|state|message"
    table(header.split("|"), rows, "no machine measured anything for this database yet")


def _values(machine: MachineReport) -> dict[str, Any]:
    """A machine as plain data."""
    seen = machine.seen_at
    return {
        **vars(machine),
        "facts": dict(machine.facts),
        "calibration": dict(machine.calibration),
        "seen_at": None if seen is None else seen.isoformat(),
    }
