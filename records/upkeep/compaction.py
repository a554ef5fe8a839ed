"""Compaction: what is told about old trials shrinks, what follows from them does not change.

A trial older than asked for loses, in place, what nothing learns from any more:

- its `samples` become the one that is their median, `latency_s`, and its `warm_samples` go, where
  it is superseded (not the last word on its configuration), or further than `FAR` from the fastest
  of its series: neither can come among the near-ties that decide a best, and the spread of a
  configuration nobody would choose is of no use;
- its `message`, where more than `ALIKE` trials of its series failed with the same, keeps its first
  `KEPT_OF_MESSAGE` characters; the oldest ones of the series keep the whole of it.

No trial is removed (that is what `prune` is for), and no other column changes: configurations,
statuses, latencies, times, machines and jobs stay, so that bests, near-ties, quarantine, what cost
models learn and every count are what they were. Whole models, crashes and the trials of jobs that
have not finished (running, or to be resumed) stay whole.

Invariant: a compacted trial that is met again in full, in an import or a merge, is the same trial
(`incoming.same`), so that nothing comes twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, or_, select, update

from tilesmith.records.schema.models import JOBS, SERIES, TRIALS, WORKLOADS
from tilesmith.records.trials.incoming import compacted
from tilesmith.records.trials.record import MODEL

FAR = 1.5
"""How many times as long as the fastest of its series a trial takes whose samples may go."""

ALIKE = 3
"""So many failures with the same message keep it whole, in each series."""

KEPT_OF_MESSAGE = 60
"""Characters of a repeated message that stay."""

_CUT = "... (cut: others failed alike)"


@dataclass
class Compaction:
    """What was, or would be, compacted.

    Attributes:
        trials: of how many trials anything went.
        samples, messages: of how many the samples went, of how many the message.
        characters: how much shorter the texts are.
    """

    trials: int = 0
    samples: int = 0
    messages: int = 0
    characters: int = 0


def series_to_compact(connection: Connection) -> list[int]:
    """Return the numbers of all series, except those of whole models."""
    rows = (
        select(SERIES.c.id)
        .join(WORKLOADS, WORKLOADS.c.id == SERIES.c.workload_id)
        .where(WORKLOADS.c.operator != MODEL)
        .order_by(SERIES.c.id)
    )
    return [int(number) for number in connection.execute(rows).scalars()]


def compact(
    connection: Connection,
    series: Iterable[int],
    before: datetime,
    done: Compaction,
    *,
    dry_run: bool,
) -> None:
    """Compact the trials of some series that were measured before a moment, adding to `done`.

    Args:
        connection: an open write transaction, unless it is a dry run, which only counts.
    """
    for number in series:
        changes = list(_changes(connection, number, before))
        for change in changes:
            _count(done, change)
        names = ("number", "new_samples", "new_warm", "new_message")
        if changes and not dry_run:
            connection.execute(_CHANGE, [{n: change[n] for n in names} for change in changes])


def _changes(connection: Connection, series: int, before: datetime) -> Iterator[dict[str, Any]]:
    """What changes in the trials of one series: new texts, and the number of characters won."""
    fastest = connection.execute(
        select(func.min(TRIALS.c.latency_s)).where(TRIALS.c.series_id == series, TRIALS.c.latest)
    ).scalar()
    whole: Counter[str] = Counter()
    for row in connection.execute(_OLD, {"series": series, "before": before}).all():
        number, message, latency, samples, warm, latest = row
        texts = samples, warm, message
        if latency is not None and (not latest or (fastest and latency > FAR * fastest)):
            samples, warm = compacted(latency) or samples, "[]"
        elif latency is None and len(message) > 2 * KEPT_OF_MESSAGE:
            whole[message] += 1
            if whole[message] > ALIKE:
                message = f"{message[:KEPT_OF_MESSAGE].partition(chr(10))[0]} {_CUT}"
        won = sum(map(len, texts)) - len(samples) - len(warm) - len(message)
        if won > 0:
            yield {
                "number": number,
                "new_samples": samples,
                "new_warm": warm,
                "new_message": message,
                "won": won,
                "is_message": message != texts[2],
            }


_FINISHED = select(JOBS.c.id).where(JOBS.c.status == "finished")

_OLD = (
    select(
        TRIALS.c.id,
        TRIALS.c.message,
        TRIALS.c.latency_s,
        TRIALS.c.samples,
        TRIALS.c.warm_samples,
        TRIALS.c.latest,
    )
    .where(TRIALS.c.series_id == bindparam("series"), TRIALS.c.created_at < bindparam("before"))
    .where(TRIALS.c.status != "crash")
    .where(or_(TRIALS.c.job_id.is_(None), TRIALS.c.job_id.in_(_FINISHED)))
    .order_by(TRIALS.c.id)
)


def _count(done: Compaction, change: dict[str, Any]) -> None:
    done.trials += 1
    done.characters += change["won"]
    if change["is_message"]:
        done.messages += 1
    else:
        done.samples += 1


_CHANGE = (
    update(TRIALS)
    .where(TRIALS.c.id == bindparam("number"))
    .values(
        samples=bindparam("new_samples"),
        warm_samples=bindparam("new_warm"),
        message=bindparam("new_message"),
    )
)
