"""`tilesmith db top`: the best schedules, those that gain a model most first."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.commands.db.options import limit_option, opened_at, with_database_and_json
from tilesmith.display.output import print_json

if TYPE_CHECKING:
    from tilesmith.records import Best, Database
    from tilesmith.records.questions.gains import Subject, Task

_SORTS = ("gain", "latency", "workload")


@click.command(cls=Explained)
@click.argument("workload", required=False)
@with_database_and_json
@click.option("--operator", help="Only this operator.")
@click.option("--target", help="Only this target (name or identity).")
@click.option("--threads", type=click.IntRange(min=1), help="Only this thread count.")
@click.option("--measured-by", type=click.Choice(["hardware", "simulator"]))
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="gain",
    show_default=True,
    help="gain: times x (default - best), as the newest job that tuned a workload tells.",
)
@limit_option
def top(
    workload: str | None, database: str, as_json: bool, sort: str, limit: int, **asked: Any
) -> None:
    """The best schedule of every workload, or the fastest ones of WORKLOAD.

    What tuning gained comes first: how many times the model runs the workload, times what its best
    schedule is faster than the untuned one.
    """
    from tilesmith.commands.db import tables

    with opened_at(database) as opened:
        name = opened.name
        if workload is None:
            bests, tasks = _bests(opened, sort, limit or None, asked)
            origins = opened.origins(bests)
        else:
            asked.pop("operator")
            records = opened.top(workload, limit=limit or 1_000_000, **asked)
    if workload is None:
        tasks_of = [tasks.get(_subject(best)) for best in bests]
        if as_json:
            both = zip(bests, tasks_of, origins, strict=True)
            rows = [{**tables.best_values(*one), **_gain(*one[:2])} for one in both]
            print_json({"records": rows})
        else:
            empty = f"no working schedule in '{name}' passes these conditions"
            tables.bests_table(bests, tasks_of, origins, empty)
    elif as_json:
        print_json({"records": [tables.record_values(record) for record in records]})
    else:
        tables.records_table(records, empty=f"no working schedule of '{workload}' in '{name}'")


def _bests(
    database: "Database", sort: str, limit: int | None, asked: dict[str, Any]
) -> "tuple[list[Best], dict[Subject, Task]]":
    """The bests in the order asked for, and what jobs tell of them."""
    from tilesmith.records.questions.gains import tasks_of

    tasks = tasks_of(database.jobs())
    if sort == "workload":
        return database.overview(limit=limit, **asked), tasks
    if sort == "latency":
        bests = sorted(database.overview(**asked), key=lambda best: -best.latency)
        return bests[:limit], tasks
    ranked = sorted(tasks, key=lambda subject: -tasks[subject].told_s)
    keys = list(dict.fromkeys(key for key, *_ in ranked))
    if limit is not None:
        keys = keys[: 4 * limit]  # a best may be of another way of measuring than its job's
    bests = database.overview(workloads=keys, **asked) if keys else []
    bests.sort(key=lambda best: -(_seconds(best, tasks) or 0.0))  # stable: by workload otherwise
    if limit is None or len(bests) < limit:
        known = {_subject(best) for best in bests}
        more = None if limit is None else limit + len(known)
        bests += [b for b in database.overview(limit=more, **asked) if _subject(b) not in known]
    return bests[:limit], tasks


def _subject(best: "Best") -> "Subject":
    return best.record.workload_key, best.record.target_identity, best.record.threads


def _seconds(best: "Best", tasks: "dict[Subject, Task]") -> float | None:
    task = tasks.get(_subject(best))
    return None if task is None else task.gained_s(best)


def _gain(best: "Best", task: "Task | None") -> dict[str, Any]:
    """What a job tells of a best, as plain data; null where none does."""
    from tilesmith.commands.db.tables import in_us

    return {
        "weight": None if task is None else task.weight,
        "default_us": task and in_us(task.default_s),
        "gained_us": task and in_us(task.gained_s(best)),
        "gain": None if task is None else task.gain(best),
    }
