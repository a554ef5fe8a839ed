"""Writing trials: one `Writer` lives for one transaction and does everything that goes into it.

It finds or makes the rows a trial points to, keeps `latest` true (see `records.schema.models`),
and, when trials come from outside (import, merge), leaves out those already there and reports
contradictions.

Invariant: row numbers are remembered within the transaction only. Another process may prune
between two transactions, and SQLite hands a freed number out again.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from tilesmith.records.schema.models import MACHINES, SERIES, TARGETS, TOOLCHAINS, TRIALS, WORKLOADS
from tilesmith.records.trials.incoming import (
    CONFLICTS_KEPT,
    Incoming,
    SeriesKey,
    Tally,
    conflict,
    contradiction,
    later,
    same,
)
from tilesmith.records.trials.reading import Rows
from tilesmith.records.trials.record import TuningRecord
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import DatabaseError

BATCH = 5000
"""Trials written in one go."""

_LOCK_SERIES = (
    select(SERIES.c.id)
    .where(SERIES.c.id.in_(bindparam("series", expanding=True)))
    .order_by(SERIES.c.id)
    .with_for_update()
)

_LOOK_UP = (
    select(
        TRIALS.c.id,
        TRIALS.c.config_digest,
        TRIALS.c.status,
        TRIALS.c.latency_s,
        TRIALS.c.samples,
        TRIALS.c.host,
        TRIALS.c.created_at,
        TRIALS.c.latest,
    )
    .where(TRIALS.c.config_digest.in_(bindparam("digests", expanding=True)))
    .where(TRIALS.c.series_id == bindparam("series"))
    .order_by(TRIALS.c.id)
)
"""Walks `ix_trials_config`."""


def incoming(record: TuningRecord, toolchain: Toolchain, host: str, now: datetime) -> Incoming:
    """A record as it is written; what it leaves open is filled in."""
    result = record.result
    series = SeriesKey(
        record.workload_key,
        record.target_identity,
        record.threads,
        result.measured_by,
        record.input_layout,
        record.output_layout,
        record.toolchain or toolchain,
        record.calibration,
    )
    return Incoming(
        series,
        {
            "config": record.config.key,
            "config_digest": record.digest,
            "status": result.status,
            "message": storable(result.message),
            "latency_s": result.latency,
            "samples": samples_text(result.samples),
            "warm_samples": samples_text(result.warm_samples),
            "bound": result.bound,
            "elapsed_s": result.elapsed,
            "job_id": record.job,
            "host": record.host or ("" if result.machine else host),
            "created_at": record.created_at or now,
            "machine": result.machine or None,
        },
        dated=record.created_at is not None,
    )


def samples_text(samples: Sequence[float]) -> str:
    """Samples as a JSON list; infinities and NaN are refused (`DatabaseError`)."""
    if not all(map(math.isfinite, samples)):
        raise DatabaseError(f"a sample of {samples} is not a number of seconds")
    return f"[{','.join(map(repr, map(float, samples)))}]"


def storable(text: str) -> str:
    """Text that every server takes: no NUL, no lone surrogate."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


class Writer:
    """Writes trials on an open write transaction. See the module's docstring."""

    def __init__(self, connection: Connection) -> None:
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._origins: dict[int, str] = {}
        self._connection = connection
        self._ids: dict[Any, int] = {}
        self._hosts: dict[tuple[str, str], tuple[int, str]] = {}
        self._new: set[int] = set()
        self._newest: int | None = None

    def insert(self, batch: Sequence[Incoming], *, deduplicate: bool) -> None:
        """Write trials in the order given and count them in `tallies`, by where they come from.

        Args:
            deduplicate: leave out a trial that is already there (simulated: same series,
                configuration and samples; on hardware also the same time and host), and report
                contradictions.
        """
        if deduplicate:
            self._newest_before()
        self._origins.clear()
        numbers = [self.series_id(item.series) for item in batch]
        known = self._known(numbers, batch)
        rows: list[dict[str, Any]] = []
        demoted: list[int] = []
        for item, number in zip(batch, numbers, strict=True):
            row = {**item.values, "series_id": number, "latest": True}
            self._place(row)
            earlier = known[number, row["config_digest"]]
            tally = self.tallies[item.origin]
            if deduplicate and any(same(item, other) for other in earlier):
                tally.duplicates += 1
                continue
            tally.added += 1
            if earlier:
                demoted += self._settle(item, row, earlier, deduplicate)
            earlier.append(row)
            rows.append(row)
            self._origins[id(row)] = item.origin
        if demoted:
            self._connection.execute(
                update(TRIALS).where(TRIALS.c.id.in_(demoted)).values(latest=False)
            )
        if rows:
            self._connection.execute(insert(TRIALS), rows)
            self._new.difference_update(numbers)

    def _place(self, row: dict[str, Any]) -> None:
        """Turn the name of a trial's machine into its number, and tell its host."""
        name = row.pop("machine", None)
        row["machine_id"] = None
        if name:
            row["machine_id"], host = self.machine(name)
            row["host"] = row["host"] or host

    def _settle(
        self, item: Incoming, row: dict[str, Any], earlier: list[dict[str, Any]], report: bool
    ) -> list[int]:
        """Decide which trial of a configuration counts; numbers of rows that no longer do."""
        last = next((other for other in earlier if other["latest"]), earlier[-1])
        others = last.get("id", math.inf) <= self._newest_before()
        others |= self._origins.get(id(last), item.origin) != item.origin
        if report and others and (reason := contradiction(item, last)):
            tally = self.tallies[item.origin]
            tally.conflict_count += 1
            if len(tally.conflicts) < CONFLICTS_KEPT:
                tally.conflicts.append(conflict(item, last, reason))
        if later(last, row) if report else last["created_at"] > row["created_at"]:
            if item.dated:
                row["latest"] = False
                return []
            row["created_at"] = last["created_at"]  # a clock was set back, or another one is ahead
        last["latest"] = False
        return [last["id"]] if "id" in last else []

    def _newest_before(self) -> int:
        """The highest trial number from before this writer: what it wrote itself is its history."""
        if self._newest is None:
            self._newest = self._connection.execute(select(func.max(TRIALS.c.id))).scalar() or 0
        return self._newest

    def _known(
        self, numbers: Sequence[int], batch: Sequence[Incoming]
    ) -> defaultdict[tuple[int, str], list[dict[str, Any]]]:
        """Trials already there of a batch's configurations, by series and digest, oldest first."""
        known: defaultdict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
        digests: dict[int, set[str]] = {number: set() for number in numbers}
        for number, item in zip(numbers, batch, strict=True):
            digests[number].add(item.values["config_digest"])
        # Another server's writers take turns here; SQLite's already did when they began.
        self._connection.execute(_LOCK_SERIES, {"series": sorted(digests)})
        for number in sorted(digests.keys() - self._new):
            asked = {"series": number, "digests": sorted(digests[number])}
            for row in self._connection.execute(_LOOK_UP, asked).mappings():
                known[number, row["config_digest"]].append(dict(row))
        return known

    # -- the rows that trials point to ----------------------------------------------------------
    def series_id(self, key: SeriesKey) -> int:
        """The number of a series, made if it is new."""
        if key not in self._ids:
            match = {
                "workload_id": self.workload_id(key.workload),
                "target_id": self.target_id(key.target),
                "threads": key.threads,
                "measured_by": key.measured_by,
                "input_layout": key.input_layout,
                "output_layout": key.output_layout,
                "toolchain_id": self.toolchain_id(key.toolchain),
                "calibration": key.calibration,
            }
            self._ids[key] = self._find_or_make(SERIES, match, {})
        return self._ids[key]

    def workload_id(self, key: str) -> int:
        """The number of a workload; its operator and dtype are read off the key."""
        if key not in self._ids:
            operator, *words = key.split()
            dtype = next((w[6:] for w in words if w.startswith("dtype=")), "float32")
            digest = hashlib.sha256(key.encode()).hexdigest()[:16]
            self._ids[key] = self._find_or_make(
                WORKLOADS,
                {"key": key},
                {"digest": digest, "operator": operator, "dtype": dtype},
            )
        return self._ids[key]

    def target_id(self, target: Target | str, facts: str = "", family: str = "") -> int:
        """The number of a target; a `Target` (or `facts`, as JSON) also renews its description."""
        if isinstance(target, Target):
            return self.target_id(target.identity, target.to_json(), target.family)
        slot = ("target", target)
        if slot not in self._ids:
            name = target.rpartition("-")[0] or target
            extra = {"name": name, "family": family, "facts": facts}
            self._ids[slot] = self._find_or_make(TARGETS, {"identity": target}, extra)
        if facts:
            renew = update(TARGETS).where(TARGETS.c.id == self._ids[slot], TARGETS.c.facts != facts)
            self._connection.execute(renew.values(facts=facts, family=family))
        return self._ids[slot]

    def toolchain_id(self, toolchain: Toolchain) -> int:
        """The number of a set of versions."""
        if toolchain not in self._ids:
            match = {f.name: getattr(toolchain, f.name) for f in fields(Toolchain)}
            self._ids[toolchain] = self._find_or_make(TOOLCHAINS, match, {})
        return self._ids[toolchain]

    def machine(self, name: str) -> tuple[int, str]:
        """The number of a machine, made if it is new, and its host name."""
        name = storable(name)
        slot = ("machine", name)
        if slot not in self._hosts:
            extra = {"host": "", "target": "", "facts": "", "calibration": "", "seen_at": None}
            number = self._find_or_make(MACHINES, {"name": name}, extra)
            query = select(MACHINES.c.host).where(MACHINES.c.id == number)
            self._hosts[slot] = number, self._connection.execute(query).scalar() or name
        return self._hosts[slot]

    def _find_or_make(self, table: Any, match: dict[str, Any], extra: dict[str, Any]) -> int:
        query = _find(table, tuple(match))
        number = self._connection.execute(query, match).scalar()
        if number is not None:
            return int(number)
        try:
            with self._connection.begin_nested():
                inserted = self._connection.execute(insert(table).values(**match, **extra))
        except IntegrityError:  # another process made it meanwhile (not on SQLite)
            return int(self._connection.execute(query, match).scalar_one())
        key = inserted.inserted_primary_key
        assert key is not None
        if table is SERIES:
            self._new.add(int(key[0]))
        return int(key[0])


@lru_cache
def _find(table: Any, names: tuple[str, ...]) -> Rows:
    """The statement that finds the row of `table` with values for `names`; built once."""
    return select(table.c.id).where(*(table.c[n] == bindparam(n) for n in names))
