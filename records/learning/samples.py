"""Trials to learn from: a bounded, repeatable share of every workload's, whatever the size.

A cost model is trained on trials of one way of measuring, made by the versions that are installed:
stale ones teach what is no longer so. Of each lesson (a workload on a target with a number of
threads) the fastest are taken, since a search lives among them, and others in the order of their
configuration's digest, which is as good as drawn and the same on every machine. Both walk an index.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select

from tilesmith.records.opened.store import Store
from tilesmith.records.schema.models import SERIES, TARGETS, TOOLCHAINS, TRIALS, WORKLOADS
from tilesmith.records.trials.reading import TOOLCHAIN_COLUMNS, to_toolchain
from tilesmith.records.trials.record import MODEL
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.results.measure import MeasuredBy

FASTEST = 0.25
"""Share of a lesson's trials that are its fastest."""


class Sample(NamedTuple):
    """A trial as a cost model learns it, seconds."""

    config: str
    latency: float


class Lesson(NamedTuple):
    """Trials of one workload on one target with `threads` threads.

    `facts` is the best known description of the target as JSON, or "" if none is kept. Trials that
    were simulated share one calibration.
    """

    workload: str
    target: str
    family: str
    facts: str
    threads: int
    calibration: str
    samples: tuple[Sample, ...]


def lessons(
    store: Store,
    measured_by: MeasuredBy,
    *,
    family: str | None = None,
    target: str | None = None,
    most: int = 400,
    least: int = 8,
) -> Iterator[Lesson]:
    """What can be learned from, by workload, target, threads and calibration, in that order.

    Args:
        family, target: only these; `target` is an identity.
        most: trials of a lesson.
        least: trials below which nothing is learned from a workload.
    """
    with store.reading() as connection:
        groups = _groups(connection, measured_by, family, target, store.toolchain)
        for (workload, identity, threads, calibration), (series, kind, facts) in groups.items():
            samples = _samples(connection, series, most)
            if len(samples) >= least:
                yield Lesson(workload, identity, kind, facts, threads, calibration, samples)


Group = tuple[str, str, int, str]


def _groups(
    connection: Connection,
    measured_by: MeasuredBy,
    family: str | None,
    target: str | None,
    current: Toolchain,
) -> dict[Group, tuple[list[int], str, str]]:
    """Numbers of fresh series by lesson, with the target's family and facts."""
    query = (
        select(
            SERIES.c.id,
            SERIES.c.threads,
            SERIES.c.calibration,
            WORKLOADS.c.key,
            TARGETS.c.identity,
            TARGETS.c.family,
            TARGETS.c.facts,
            *TOOLCHAIN_COLUMNS,
        )
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == SERIES.c.target_id)
        .join(TOOLCHAINS, TOOLCHAINS.c.id == SERIES.c.toolchain_id)
        .where(SERIES.c.measured_by == measured_by, WORKLOADS.c.operator != MODEL)
        .where(*([] if family is None else [TARGETS.c.family == family]))
        .where(*([] if target is None else [TARGETS.c.identity == target]))
    )
    groups: dict[Group, tuple[list[int], str, str]] = {}
    for row in connection.execute(query).mappings():
        if not to_toolchain(row).stale_because(current, measured_by):
            group = row["key"], row["identity"], row["threads"], row["calibration"]
            groups.setdefault(group, ([], row["family"], row["facts"]))[0].append(row["id"])
    return {group: groups[group] for group in sorted(groups)}


def _samples(connection: Connection, series: Sequence[int], most: int) -> tuple[Sample, ...]:
    """The fastest of some series, then others by digest; each configuration once."""
    share = max(1, int(FASTEST * most))
    fast: list[tuple[float, str, str]] = []
    drawn: list[tuple[str, str, float]] = []
    for number in sorted(series):
        ours = TRIALS.c.series_id == number, TRIALS.c.latest
        columns = select(TRIALS.c.config, TRIALS.c.config_digest, TRIALS.c.latency_s)
        quick = columns.where(*ours, TRIALS.c.latency_s.is_not(None))
        quick = quick.order_by(TRIALS.c.latency_s, TRIALS.c.config_digest).limit(share)
        fast += [
            (row.latency_s, row.config_digest, row.config) for row in connection.execute(quick)
        ]
        others = columns.add_columns(TRIALS.c.samples).where(
            *ours, or_(TRIALS.c.latency_s.is_not(None), TRIALS.c.status == "slow")
        )
        others = others.order_by(TRIALS.c.config_digest).limit(most)
        drawn += [
            (row.config_digest, row.config, seconds)
            for row in connection.execute(others)
            if (seconds := _seconds(row)) is not None
        ]
    samples = {config: Sample(config, latency) for latency, _, config in sorted(fast)[:share]}
    for _, config, latency in sorted(drawn):
        if len(samples) >= most:
            break
        samples.setdefault(config, Sample(config, latency))
    return tuple(samples.values())


def _seconds(row: Any) -> float | None:
    """What a trial took; of one given up as slow, what it took until then; None if damaged."""
    if row.latency_s is not None:
        return float(row.latency_s)
    try:
        samples = [float(seconds) for seconds in json.loads(row.samples)]
    except (TypeError, ValueError):
        return None
    return min(samples, default=None)
