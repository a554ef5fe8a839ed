"""`tilesmith models`: cost models that a database's own trials made."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import ExplainedGroup
from tilesmith.cli.options import Command, database_option, json_option
from tilesmith.display.output import note, print_json, table
from tilesmith.search_space.support.files import check_output, written

if TYPE_CHECKING:
    from tilesmith.records import Database
    from tilesmith.records.learning.cost_models import StoredModel


def with_database_and_json(command: Command) -> Command:
    return database_option(required=True)(json_option(command))


def opened_at(location: str) -> "Database":
    """A database that is there."""
    from tilesmith.records.database import Database

    return Database.open(location, create=False)


@click.group(cls=ExplainedGroup)
def models() -> None:
    """Train, list and choose cost models made from a database's trials."""


@models.command()
@with_database_and_json
@click.option("--target", help="Only this machine or target (name or identity).")
@click.option("--family", help="Only targets of this family; one model for all of them.")
@click.option("--measured-by", type=click.Choice(["hardware", "simulator"]))
@click.option(
    "--samples",
    type=click.IntRange(min=16),
    default=400,
    show_default=True,
    help="Trials of a workload that are learned from, the fastest first.",
)
@click.option(
    "--workers",
    default="",
    metavar="N|auto|ray|ray://HOST:PORT",
    help="Share the training out: N workers on this machine, or those of a Ray cluster.",
)
def train(database: str, as_json: bool, workers: str, **asked: Any) -> None:
    """Train models on what is on record, one for each machine measured and each family simulated.

    Some workloads are held out; a model that ranks them better than what a job uses without it is
    made active: jobs on those machines start from it.
    """
    from tilesmith.jobs.pools import helpers
    from tilesmith.jobs.tuning.models import train_models

    with opened_at(database) as opened, helpers(workers) as mapped:
        reports = train_models(opened, mapped=mapped, **asked)
    if as_json:
        print_json({"models": [report.to_json() for report in reports]})
        return
    for report in reports:
        name = "no model" if report.id is None else f"model {report.id}"
        state = "active" if report.active else "not active"
        click.echo(f"{report.subject}: {name if report.id is None else f'{name}, {state}'}")
        if report.id is not None:
            origin = f"{report.trials} trials of {report.workloads} workloads"
            click.echo(f"  {report.recipe}, made from {origin}")
        click.echo(f"  {report.reason}")
        if report.left_out:
            first = next(iter(report.left_out.items()))
            note(f"  {len(report.left_out)} workloads left out, the first: {': '.join(first)}")


@models.command(name="list")
@with_database_and_json
def list_models(database: str, as_json: bool) -> None:
    """Every model, the newest first, and whether jobs use it."""
    from tilesmith.jobs.tuning.models import state_of
    from tilesmith.records.learning import cost_models

    with opened_at(database) as opened:
        models = [(model, state_of(opened, model)) for model in cost_models.listed(opened)]
    if as_json:
        print_json({"models": [_values(model, state) for model, state in models]})
        return
    rows = [
        (m.id, m.subject, m.measured_by, m.recipe, m.trials, len(m.workloads), _gain(m),
         f"{m.created_at:%Y-%m-%d %H:%M}", state)
        for m, state in models
    ]  # fmt: skip
    header = ("id", "for", "measured by", "is", "trials", "workloads", "pairs", "made", "state")
    click.echo(table(header, rows))


@models.command()
@click.argument("number", type=int, metavar="ID")
@with_database_and_json
@output_option("Also write the model's JSON there.")
def show(number: int, database: str, as_json: bool, output: Path | None) -> None:
    """One model: what it was made from, and what held-out workloads say of it."""
    from tilesmith.jobs.tuning.models import state_of
    from tilesmith.records.learning import cost_models

    if output is not None:
        check_output(output, database)
    with opened_at(database) as opened:
        model = cost_models.stored(opened, number)
        state = state_of(opened, model)
        if output is not None:
            with written(output) as stream:
                stream.write(f"{cost_models.text_of(opened, number)}\n".encode())
    values = {**_values(model, state), "workload_keys": list(model.workloads)}
    if as_json:
        print_json(values)
        return
    shown = [(name, value) for name, value in values.items() if not isinstance(value, list | dict)]
    click.echo(table(("model", str(number)), [(n, str(v)) for n, v in shown if n != "id"]))
    for target, scores in model.scores.items():
        click.echo(f"{target}: {scores}")
    click.echo("\n".join(model.workloads))


@models.command()
@click.argument("number", type=int, metavar="ID")
@with_database_and_json
@click.option("--off", is_flag=True, help="Offer jobs neither it nor another for the same.")
def use(number: int, database: str, as_json: bool, off: bool) -> None:
    """Offer a model to jobs, instead of the others for the same machine or family."""
    from tilesmith.jobs.tuning.models import state_of
    from tilesmith.records.learning import cost_models

    with opened_at(database) as opened:
        model = cost_models.activate(opened, number, not off)
        state = state_of(opened, model)
    if as_json:
        print_json(_values(model, state))
    else:
        note(f"model {number} for {model.subject}, {model.measured_by}: {state}")


def _values(model: "StoredModel", state: str) -> dict[str, Any]:
    """A model as `--json` shows it."""
    plain = {n: v for n, v in vars(model).items() if n not in ("workloads", "toolchain")}
    return {
        **plain,
        "created_at": model.created_at.isoformat(),
        "workloads": len(model.workloads),
        "versions": model.toolchain.to_dict(),
        "state": state,
    }


def _gain(model: "StoredModel") -> str:
    """Pairs ranked rightly on held-out workloads, and without the model, means over machines."""
    try:
        scores = [(s["model"]["accuracy"], s["others"][s["instead"]]["accuracy"])
                 for s in model.scores.values()]  # fmt: skip
        ours, theirs = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    except (KeyError, TypeError, ValueError):
        return "-"
    return f"{ours:.1%} ({theirs:.1%})"
