"""Bring the trials of other databases into one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tilesmith.records.exchange.json_lines import ImportReport, report
from tilesmith.records.exchange.lines import series_order, stored
from tilesmith.records.questions.queries import Filter
from tilesmith.records.schema.models import JOBS, MACHINES, TARGETS
from tilesmith.records.trials.incoming import Incoming
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.records.trials.writing import BATCH, Writer

_JOB_COLUMNS = (
    JOBS.c.uid,
    JOBS.c.command,
    JOBS.c.seed,
    JOBS.c.strategy,
    JOBS.c.state,
    JOBS.c.status,
    JOBS.c.message,
    JOBS.c.host,
    JOBS.c.started_at,
    JOBS.c.ended_at,
    JOBS.c.owner,
    JOBS.c.process,
    JOBS.c.heartbeat_at,
    JOBS.c.step,
    JOBS.c.progress,
)
"""All but the lease: who holds it may write for the job there, not here."""


def merge(
    into: Connection, sources: Mapping[str, Connection], current: Toolchain
) -> dict[str, ImportReport]:
    """Write every trial, job, machine and target description of `sources`, by name.

    The trials of all of them are read side by side, sorted by what they speak of, then by what they
    say: what is written does not depend on the order of the sources, nor on their names.

    Args:
        into: an open write transaction.
        current: the present versions; trials of others are counted as stale.
    """
    writer = Writer(into)
    stale: Counter[str] = Counter()
    facts = select(TARGETS.c.identity, TARGETS.c.family, TARGETS.c.facts)
    streams = []
    for name, source in sorted(sources.items()):
        for row in source.execute(facts.where(TARGETS.c.facts != "").order_by(TARGETS.c.identity)):
            writer.target_id(row.identity, row.facts, row.family)
        _merge_machines(writer, into, source)
        streams.append(_configurations(name, source, _merge_jobs(into, source)))
    batch: list[Incoming] = []
    together = groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0))
    for _, configurations in together:
        items = [item for _, trials in configurations for item in trials]
        series = items[0].series
        if series.toolchain.stale_because(current, series.measured_by):
            stale.update(item.origin for item in items)
        batch += sorted(items, key=_content)
        if len(batch) >= BATCH:
            writer.insert(batch, deduplicate=True)
            batch = []
    writer.insert(batch, deduplicate=True)
    return {
        name: replace(report(writer, origin=name), stale=stale[name]) for name in sorted(sources)
    }


def _configurations(
    name: str, source: Connection, jobs: Mapping[int | None, int]
) -> Iterator[tuple[tuple[Any, ...], list[Incoming]]]:
    """The trials of each configuration of each series, in one order everywhere."""
    for series, trials in stored(source, Filter()):
        for config, trials_of in groupby(trials, key=itemgetter("config")):
            items = [
                Incoming(series, {**trial, "job_id": jobs.get(trial["job_id"])}, origin=name)
                for trial in trials_of
            ]
            yield (*series_order(series), config), items


def _content(item: Incoming) -> tuple[Any, ...]:
    """Sorts trials of one configuration: by time, then by what they say, then by where from."""
    latency = item.values["latency_s"]
    said = item.values["host"], item.values["status"], latency is None, latency or 0.0
    return item.values["created_at"], *said, item.values["samples"], item.origin


def _merge_machines(writer: Writer, into: Connection, source: Connection) -> None:
    """Who the source's machines are, as far as this database does not know."""
    known = MACHINES.c.id, MACHINES.c.facts
    for row in source.execute(select(MACHINES).where(MACHINES.c.facts != "")):
        number, _ = writer.machine(row.name)
        names = ("host", "target", "facts", "calibration", "seen_at")
        values = {name: getattr(row, name) for name in names}
        into.execute(update(MACHINES).where(known[0] == number, known[1] == "").values(values))


def _merge_jobs(into: Connection, source: Connection) -> dict[int | None, int]:
    """Copy the jobs that are not there yet; from the source's numbers to ours."""
    numbers: dict[int | None, int] = {}
    for row in source.execute(select(JOBS.c.id, *_JOB_COLUMNS).order_by(JOBS.c.id)).mappings():
        values: dict[str, Any] = {column.key: row[column.key] for column in _JOB_COLUMNS}
        number = into.execute(select(JOBS.c.id).where(JOBS.c.uid == row["uid"])).scalar()
        if number is None:
            inserted = into.execute(insert(JOBS).values(**values)).inserted_primary_key
            assert inserted is not None
            number = inserted[0]
        numbers[row["id"]] = int(number)
    return numbers
