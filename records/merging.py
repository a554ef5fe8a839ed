"""Two databases: bring one's trials into the other, and compare what each holds best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tilesmith.records.exchange import ImportReport, report, stored
from tilesmith.records.models import JobRow, MachineRow, TargetRow
from tilesmith.records.queries import Filter
from tilesmith.records.record import Best
from tilesmith.records.writing import BATCH, Incoming, Writer

_JOB_COLUMNS = (
    JobRow.uid,
    JobRow.command,
    JobRow.seed,
    JobRow.strategy,
    JobRow.state,
    JobRow.status,
    JobRow.message,
    JobRow.host,
    JobRow.started_at,
    JobRow.ended_at,
)


def merge(into: Connection, source: Connection) -> ImportReport:
    """Write every trial, job and target description of `source`, on an open write transaction."""
    writer = Writer(into)
    facts = select(TargetRow.identity, TargetRow.family, TargetRow.facts)
    for row in source.execute(facts.where(TargetRow.facts != "")):
        writer.target_id(row.identity, row.facts, row.family)
    _merge_machines(writer, into, source)
    numbers = _merge_jobs(into, source)
    batch: list[Incoming] = []
    for series, trials in stored(source, Filter()):
        for trial in trials:
            batch.append(Incoming(series, {**trial, "job_id": numbers.get(trial["job_id"])}))
            if len(batch) == BATCH:
                writer.insert(batch, deduplicate=True)
                batch = []
    writer.insert(batch, deduplicate=True)
    return report(writer)


def _merge_machines(writer: Writer, into: Connection, source: Connection) -> None:
    """Who the source's machines are, as far as this database does not know."""
    known = MachineRow.id, MachineRow.facts
    for row in source.execute(select(MachineRow.__table__).where(MachineRow.facts != "")):
        number, _ = writer.machine(row.name)
        names = ("host", "target", "facts", "calibration", "seen_at")
        values = {name: getattr(row, name) for name in names}
        into.execute(update(MachineRow).where(known[0] == number, known[1] == "").values(values))


def _merge_jobs(into: Connection, source: Connection) -> dict[int | None, int]:
    """Copy the jobs that are not there yet; from the source's numbers to ours."""
    numbers: dict[int | None, int] = {}
    for row in source.execute(select(JobRow.id, *_JOB_COLUMNS).order_by(JobRow.id)).mappings():
        values: dict[str, Any] = {column.key: row[column.key] for column in _JOB_COLUMNS}
        number = into.execute(select(JobRow.id).where(JobRow.uid == row["uid"])).scalar()
        if number is None:
            made = into.execute(insert(JobRow).values(**values)).inserted_primary_key
            assert made is not None
            number = made[0]
        numbers[row["id"]] = int(number)
    return numbers


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
    found = [Difference(*key, left.get(key), right.get(key)) for key in left.keys() | right.keys()]
    return sorted(found, key=_order)


def _subject(best: Best) -> tuple[str, str, int]:
    return best.record.workload_key, best.record.target_identity, best.record.threads


def _order(difference: Difference) -> tuple[float, str, str, int]:
    ratio = difference.ratio
    far = math.inf if ratio is None else abs(math.log(ratio))
    return -far, difference.workload, difference.target, difference.threads
