"""`tilesmith db knobs`, `history`, `regress`: what trials tell of knobs, workloads, versions."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import json_option
from tilesmith.commands.db.options import limit_option, opened_at, with_database_and_json
from tilesmith.display.output import note, print_json
from tilesmith.search_space.support.errors import InputError, JobError

if TYPE_CHECKING:
    from tilesmith.records import Database, TuningRecord
    from tilesmith.records.upkeep.merging import Difference

_TRIALS = 100_000
"""Trials of a workload that are studied, the fastest first."""

_target = click.option("--target", help="Only this target (name or identity).")
_threads = click.option("--threads", type=click.IntRange(min=1), help="Only this thread count.")
_measured_by = click.option("--measured-by", type=click.Choice(["hardware", "simulator"]))


@click.command(cls=Explained)
@click.argument("workload")
@with_database_and_json
@_target
@_threads
@_measured_by
@click.option("--knob", "only", default="", help="Only this knob.")
def knobs(workload: str, database: str, as_json: bool, only: str, **asked: Any) -> None:
    """What each knob did to WORKLOAD: latency by its values, over all trials on record.

    The effect of a value is how many times as long a trial takes as with the knob's best value,
    all else being equal, by an additive model of the logarithm of latency. One machine, thread
    count and way of measuring is studied: that with most trials, of those that options leave.
    """
    from tilesmith.commands.db import tables
    from tilesmith.jobs.inspection.knob_effects import LEAST, knob_effects

    with opened_at(database) as opened:
        name, records = opened.name, _of_one_machine(opened, workload, asked)
    effects = knob_effects(records)
    if len(records) < LEAST:
        raise InputError(
            f"'{name}' has {len(records)} working trials of '{workload}' that compare; "
            f"{LEAST} make a study"
        )
    known = [effect.knob for effect in effects]
    if only and only not in known:
        raise InputError(f"knob '{only}' had one value; several had {', '.join(known) or 'none'}")
    shown = [effect for effect in effects if only in ("", effect.knob)]
    first = records[0]
    about = {
        "workload": first.workload_key,
        "target": first.target_identity,
        "threads": first.threads,
        "measured_by": first.result.measured_by,
        "trials": len(records),
    }
    if as_json:
        print_json({**about, "knobs": [effect.to_json() for effect in shown]})
        return
    rows = [
        (
            effect.knob, "none" if one.value is None else str(one.value), one.trials,
            f"{one.best_s * 1e6:.2f}", f"{one.median_s * 1e6:.2f}", f"{one.effect:.3f}",
        )
        for effect in shown
        for one in effect.values
    ]  # fmt: skip
    tables.table(
        ["knob", "value", "trials", "best us", "median us", "effect"], rows, "no knob varied"
    )
    note(f"{len(records)} trials on {first.target_identity}, by {first.result.measured_by}")


def _of_one_machine(
    database: "Database", workload: str, asked: dict[str, Any]
) -> "list[TuningRecord]":
    """The working trials of the machine, thread count and way that has most of them."""
    target = asked.pop("target")
    grouped: dict[tuple[object, ...], list[TuningRecord]] = {}
    for record in database.top(workload, limit=_TRIALS, **asked):
        identity = record.target_identity
        if target in (None, identity, identity.rpartition("-")[0]):
            of = (identity, record.threads, record.result.measured_by, record.toolchain)
            grouped.setdefault(of, []).append(record)
    return max(grouped.values(), key=len, default=[])


@click.command(cls=Explained)
@click.argument("workload")
@with_database_and_json
@_target
@_threads
@_measured_by
def history(workload: str, database: str, as_json: bool, **asked: Any) -> None:
    """WORKLOAD over versions and machines: what each made of it, the oldest first."""
    from tilesmith.commands.db import tables
    from tilesmith.search_space.support.json_object import object_of

    with opened_at(database) as opened:
        name, chapters = opened.name, opened.history(workload, **asked)
    if as_json:
        rows_of = [
            {**tables.best_values(one.best), **object_of(one, "trials since until")}
            for one in chapters
        ]
        print_json({"workload": workload, "history": rows_of})
        return
    rows = []
    before: dict[tuple[object, ...], float] = {}
    for one in chapters:
        record = one.best.record
        same = record.target_identity, record.threads, record.result.measured_by
        earlier = before.get(same)
        before[same] = one.best.latency
        versions = record.toolchain.to_dict() if record.toolchain else {}
        rows.append(
            (
                f"{one.since:%Y-%m-%d}", f"{one.until:%Y-%m-%d}", record.target_identity,
                record.threads, record.result.measured_by,
                " ".join(f"{n} {versions[n]}" for n in ("tilesmith", "codegen", "llvm", "space")
                         if n in versions),
                one.trials, tables.microseconds(one.best.latency),
                tables.times(earlier / one.best.latency if earlier else None),
                "stale" if one.best.stale else "", str(record.config),
            )
        )  # fmt: skip
    header = "since|until|target|threads|measured by|versions|trials|us|times as fast|stale"
    empty = f"no working schedule of '{workload}' in '{name}'"
    tables.table([*header.split("|"), "configuration"], rows, empty)


@click.command(cls=Explained)
@click.argument("databases", nargs=-1, required=True, metavar="BEFORE [AFTER]")
@_target
@json_option
@limit_option
def regress(databases: tuple[str, ...], target: str | None, as_json: bool, limit: int) -> None:
    """What became slower from BEFORE to AFTER, beyond noise; exits with 1 where anything did.

    Two databases' bests are compared; of one database those that other versions left with those of
    the versions installed now. Noise is what the samples' spread explains: three standard errors of
    both medians, and at least 1 % on hardware.
    """
    from tilesmith.commands.db import tables
    from tilesmith.jobs.inspection.regressions import compared, slowed

    if len(databases) > 2:
        raise click.UsageError("name one database, or two: 'regress BEFORE AFTER'")
    pairs = compared(_differences(databases, target))
    counts = {verdict: sum(pair.verdict == verdict for pair in pairs) for verdict in
              ("slower", "faster", "noise", "gone", "other way")}  # fmt: skip
    slower = slowed(pairs)
    if as_json:
        print_json({"summary": counts, "slower": [pair.to_json() for pair in slower]})
    else:
        rows = [
            (
                pair.workload, pair.target, pair.threads,
                tables.microseconds(pair.before_s),
                tables.microseconds(pair.after_s),
                f"{pair.ratio:.3f}", f"{pair.noise:.3f}",
                "the same" if pair.same_schedule else "another",
            )
            for pair in slower[: limit or None]
        ]  # fmt: skip
        header = "workload|target|threads|before us|after us|ratio|noise up to|schedule"
        tables.table(header.split("|"), rows, "nothing became slower")
        note(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    if slower:
        raise JobError(f"{len(slower)} of {len(pairs)} workloads became slower beyond noise")


def _differences(databases: tuple[str, ...], target: str | None) -> "list[Difference]":
    from tilesmith.records.upkeep.merging import diff

    with opened_at(databases[0]) as first:
        if len(databases) == 1:
            earlier = first.overview(target=target, stale=True)
            return diff(earlier, first.overview(target=target, stale=False))
        before = first.overview(target=target)
    with opened_at(databases[1]) as second:
        return diff(before, second.overview(target=target))
