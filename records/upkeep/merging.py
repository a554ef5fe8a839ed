"""Several databases: the trials of others brought into one, and what each of them holds best."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tilesmith.records.exchange.json_lines import ImportReport, report
from tilesmith.records.exchange.lines import series_order, stored
from tilesmith.records.questions.queries import Filter
from tilesmith.records.schema.models import JOBS, MACHINES, TARGETS
from tilesmith.records.trials.incoming import Incoming
from tilesmith.records.trials.record import Best
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.records.trials.writing import BATCH, Writer


@dataclass(frozen=True)
class Difference:
    """What two databases hold best for one workload, target and thread count.

    Attributes:
        ours, theirs: None where a database has nothing that works.
    """

    workload: str
    target: str
    threads: int
    ours: Best | None
    theirs: Best | None

    @property
    def ratio(self) -> float | None:
        """Their latency over ours: above one, ours is the faster; None where one has none."""
        if self.ours is None or self.theirs is None:
            return None
        return self.theirs.latency / self.ours.latency

    @property
    def comparable(self) -> bool:
        """Whether both were measured in the same way."""
        if self.ours is None or self.theirs is None:
            return False
        ours, theirs = self.ours.record.result, self.theirs.record.result
        return ours.measured_by == theirs.measured_by


def diff(ours: Iterable[Best], theirs: Iterable[Best]) -> list[Difference]:
    """Every subject of either overview, the most different first, equal ones last."""
    left, right = ({_subject(best): best for best in bests} for bests in (ours, theirs))
    differences = [
        Difference(*key, left.get(key), right.get(key)) for key in left.keys() | right.keys()
    ]
    return sorted(differences, key=_order)


def _subject(best: Best) -> tuple[str, str, int]:
    return best.record.workload_key, best.record.target_identity, best.record.threads


def _order(difference: Difference) -> tuple[float, str, str, int]:
    ratio = difference.ratio
    far = math.inf if ratio is None else abs(math.log(ratio))
    return -far, difference.workload, difference.target, difference.threads


@dataclass(frozen=True)
class MergeStanding:
    """What a merge made of one workload, target and thread count.

    Attributes:
        best: the best after the merge.
        winner: the database whose best it is: the one merged into ("" in its place) where it was
            there before, else the first by name; None where it was nobody's best (what was best
            alone was overruled by what another one says of it).
        before: the best of the database merged into, None if it had none.
        theirs: the best of each source that has one, by name.
    """

    workload: str
    target: str
    threads: int
    best: Best
    winner: str | None
    before: Best | None
    theirs: Mapping[str, Best]

    @property
    def gain(self) -> float | None:
        """How many times as fast as before; None without a before measured in the same way."""
        return self.over(self.before)

    def over(self, other: Best | None) -> float | None:
        """How many times as fast as another best; None where they cannot be compared."""
        if other is None:
            return None
        ways = {best.record.result.measured_by for best in (self.best, other)}
        return other.latency / self.best.latency if len(ways) == 1 else None


@dataclass(frozen=True)
class MergeReport:
    """What a merge of several databases did.

    Attributes:
        sources: what became of the trials of each, by name.
        standings: whose schedule is best now, the greatest gain first.
    """

    sources: Mapping[str, ImportReport]
    standings: tuple[MergeStanding, ...]

    def wins(self) -> dict[str, int]:
        """Count for each source the workloads whose new best came from it."""
        won = [s.winner for s in self.standings if s.winner]
        return {name: won.count(name) for name in self.sources}


def standings(
    after: Iterable[Best], before: Iterable[Best], theirs: Mapping[str, Iterable[Best]]
) -> tuple[MergeStanding, ...]:
    """Return for each best after a merge which source held it before the merge."""
    own = {_subject(best): best for best in before}
    others = {name: {_subject(b): b for b in bests} for name, bests in sorted(theirs.items())}
    outcomes = []
    for best in after:
        key = _subject(best)
        asked = {name: bests[key] for name, bests in others.items() if key in bests}
        held = {"": own[key], **asked} if key in own else asked
        winner = next((name for name, other in held.items() if _alike(best, other)), None)
        outcomes.append(MergeStanding(*key, best, winner, own.get(key), asked))
    return tuple(sorted(outcomes, key=_by_gain))


def _alike(one: Best, other: Best) -> bool:
    return (one.record.config, one.latency) == (other.record.config, other.latency)


def _by_gain(standing: MergeStanding) -> tuple[float, str, str, int]:
    new = math.inf if standing.before is None else 0.0
    return -(standing.gain or new), standing.workload, standing.target, standing.threads


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
