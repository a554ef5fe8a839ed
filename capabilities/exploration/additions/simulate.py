"""Options of `tilesmith simulate` that compare many machines: what goes with `--set KEY=A,B,C`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.additions import Addition, Command, additions
from tilesmith.cli.files import csv_option

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.subject import Subject


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--schedules",
        type=click.Choice(["best", "chosen", "kept", "searched"]),
        help="Of a --set with several values: chosen for each machine as for one; kept from "
        "the target as it is, where they are legal; the best of both (default); or searched "
        "for on each.",
    ),
    click.option(
        "--budget",
        type=click.Choice(["area", "power"]),
        help="What latency is weighed against in the front of such points.  [default: area]",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Processes that simulate such points; of a model one a core, else one.",
    ),
    click.option(
        "--workers", metavar="N|auto|ray|ray://HOST:PORT", help="Have a Ray cluster do it instead."
    ),
    csv_option("Write such points here.", "csv_file"),
)


@additions.register("simulate")
class ManyMachines(Addition):
    """The same subject on many machines."""

    names = ("schedules", "budget", "jobs", "workers", "csv_file")

    def options(self, command: Command) -> Command:
        for option in reversed(_OPTIONS):
            command = option(command)
        return command

    def does(self, subject: "Subject", targets: Sequence[str], asked: Mapping[str, Any]) -> bool:
        from tilesmith.capabilities.exploration.sweeps.what_if import simulated_on_many

        return simulated_on_many(subject, targets, asked, self.names)
