"""`Questions`: everything that is asked of an open database; nothing here writes.

`records.database.Database` adds the writing. Every method is one transaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from tilesmith.records.learning import warm_up
from tilesmith.records.opened.store import Store
from tilesmith.records.questions import nearness, queries
from tilesmith.records.questions.bests import Group, Scope, candidates, pick
from tilesmith.records.questions.nearness import bests_elsewhere
from tilesmith.records.questions.origins import Searched, origins, tried_of
from tilesmith.records.trials import reading
from tilesmith.records.trials.record import Best, TuningRecord
from tilesmith.records.trials.toolchain import calibration_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError

if TYPE_CHECKING:
    from tilesmith.records.questions.history import Chapter
    from tilesmith.search_space.workloads.workload import Workload

_FEW = 8  # workloads whose series are all looked into at once: one statement less


class Questions(Store):
    """See the module's docstring."""

    # -- best of ----------------------------------------------------------------------------------
    def best(
        self,
        workload: "Workload | str",
        target: Target | str,
        threads: int = 1,
        *,
        input_layout: str | None = None,
        output_layout: str | None = None,
        measured_by: MeasuredBy | None = None,
    ) -> Best | None:
        """The best record of one workload, or None if nothing that works was found yet.

        Args:
            workload: the workload or its key.
            target: the target or its identity (an identity cannot tell a new calibration).
            input_layout, output_layout: only schedules with these layouts; None allows any.
            measured_by: only such records; None prefers hardware to simulator.
        """
        return self.bests(
            [workload],
            target,
            threads,
            input_layout=input_layout,
            output_layout=output_layout,
            measured_by=measured_by,
        ).get(_key(workload))

    def bests(
        self,
        workloads: "Iterable[Workload | str]",
        target: Target | str,
        threads: int = 1,
        *,
        input_layout: str | None = None,
        output_layout: str | None = None,
        measured_by: MeasuredBy | None = None,
    ) -> dict[str, Best]:
        """The best record of each workload that has one, by workload key, in one go."""
        keys = [_key(workload) for workload in workloads]
        identity, calibration = _identity(target)
        scope = Scope(keys, identity, threads, input_layout, output_layout, measured_by)
        picked = self._pick(scope, calibration, ("workload",))
        return {group[0]: best for group, best in picked.items()}

    def layout_bests(
        self,
        workloads: "Iterable[Workload | str]",
        target: Target | str,
        threads: int | None = 1,
        *,
        measured_by: MeasuredBy | None = None,
    ) -> dict[str, dict[tuple[str, str], Best]]:
        """The best record of each workload for each pair of (input, output) layouts tried.

        Without `threads`, of any thread count.

        The bests of one workload can be compared: where hardware measured any of its pairs, pairs
        that only a simulator knows are left out (`measured_by="simulator"` asks for those).
        """
        keys = [_key(workload) for workload in workloads]
        identity, calibration = _identity(target)
        scope = Scope(keys, identity, threads, measured_by=measured_by)
        by = ("workload", "input_layout", "output_layout")
        picked = sorted(self._pick(scope, calibration, by).items())
        measured = {key for (key, *_), best in picked if _on_hardware(best)}
        result: dict[str, dict[tuple[str, str], Best]] = {}
        for (key, *layouts), best in picked:
            if _on_hardware(best) or key not in measured:
                result.setdefault(key, {})[layouts[0], layouts[1]] = best
        return result

    def nearest(
        self,
        workload: "Workload",
        target: Target | str,
        threads: int | None = None,
        *,
        limit: int = 8,
        measured_by: MeasuredBy | None = None,
    ) -> list[Best]:
        """Bests of other workloads of the same operator and dtypes, the nearest in shape first.

        Their configurations are starting points: `SearchSpace.validate` decides whether one is
        legal for this workload. The distance is `nearness.distance`.
        """
        identity, calibration = _identity(target)
        with self.reading() as connection:
            keys = nearness.nearest_keys(connection, workload, identity, 2 * limit)
            scope = Scope(keys, identity, threads, measured_by=measured_by)
            members = candidates(connection, scope, self.toolchain, calibration)
            picked = pick(connection, members, ("workload",))
        return [picked[(key,)] for key in keys if (key,) in picked][:limit]

    def elsewhere(
        self,
        workload: "Workload",
        target: Target,
        threads: int,
        *,
        measured_by: MeasuredBy | None = None,
    ) -> list[Best]:
        """The bests of a workload on the machines most like a target, itself left out."""
        return bests_elsewhere(self, workload, target, threads, measured_by)

    def origin(
        self,
        workload: "Workload | str",
        target: Target | str,
        threads: int,
        measured_by: MeasuredBy | None = None,
    ) -> Origin | None:
        """How the best of a workload was found; None if nothing works that is on record."""
        best = self.best(workload, target, threads, measured_by=measured_by)
        return None if best is None else self.origins([best])[0]

    def origins(self, bests: Sequence[Best]) -> list[Origin]:
        """How each best was found."""
        facts: dict[str, Target | None] = {}

        def target_of(identity: str) -> Target | None:
            if identity not in facts:
                try:
                    facts[identity] = self.target_facts(identity)
                except DatabaseError:  # damaged: its spaces are not known
                    facts[identity] = None
            return facts[identity]

        with self.reading() as connection:
            tried = tried_of(connection, map(Searched.of, bests), self.toolchain)
        return origins(bests, tried, target_of)

    def overview(
        self,
        *,
        target: str | None = None,
        operator: str | None = None,
        threads: int | None = None,
        measured_by: MeasuredBy | None = None,
        workloads: Sequence[str] | None = None,
        stale: bool | None = None,
        limit: int | None = None,
    ) -> list[Best]:
        """The best record of every workload, target and thread count, in that order.

        Args:
            target: identity, or name (then every target of that name).
            workloads: only these, by their keys.
            stale: only what is, or is not, of other versions than the present ones.
            limit: only the first so many; those of later workloads are not even looked for.
        """
        asked = Scope(workloads, None, threads, measured_by=measured_by, operator=operator)
        result: list[Best] = []
        with self.reading() as connection:
            for scope in _in_parts(connection, asked, limit):
                members = candidates(connection, scope, self.toolchain, None, sought=False)
                members = [c for c in members if target in (None, c.of.target, _name(c.of.target))]
                members = [c for c in members if stale in (None, bool(c.stale_because))]
                bests = pick(connection, members, ("workload", "target", "threads"))
                result += [bests[group] for group in sorted(bests)]
                if limit is not None and len(result) >= limit:
                    break
        return result[:limit]

    def _pick(
        self, scope: Scope, calibration: str | None, by: tuple[str, ...]
    ) -> dict[Group, Best]:
        few = scope.workloads is not None and len(scope.workloads) <= _FEW
        with self.reading() as connection:
            members = candidates(connection, scope, self.toolchain, calibration, sought=few)
            return pick(connection, members, by)

    # -- questions --------------------------------------------------------------------------------
    def query(
        self,
        where: queries.Filter | None = None,
        *,
        sort: queries.Sort = "newest",
        limit: int | None = 100,
        offset: int = 0,
        damaged: reading.Told | None = None,
    ) -> list[TuningRecord]:
        """Trials that pass a filter, sorted.

        Args:
            damaged: is told what is wrong with a row that cannot be read, which is then left out.

        Raises:
            DatabaseError: there is such a row, and nobody to tell.
        """
        asked = where or queries.Filter()
        with self.reading() as connection:
            return queries.query(connection, asked, sort, limit, offset, damaged)

    def record(self, number: int) -> TuningRecord:
        """One trial by its number; `DatabaseError` if there is none."""
        with self.reading() as connection:
            rows = connection.execute(reading.SELECT_BY_NUMBER, {"numbers": [number]})
            row = rows.mappings().first()
        if row is None:
            raise DatabaseError(
                f"database '{self.name}' has no record {number}; 'tilesmith db query' lists numbers"
            )
        return reading.to_record(row)

    def target_facts(self, identity: str) -> Target | None:
        """The last known description of a target, None if it was never registered."""
        with self.reading() as connection:
            return queries.target_facts(connection, identity)

    def top(
        self,
        workload: "Workload | str",
        target: Target | str | None = None,
        *,
        threads: int | None = None,
        measured_by: MeasuredBy | None = None,
        limit: int = 10,
    ) -> list[TuningRecord]:
        """The fastest configurations of a workload, the last word on each, fastest first."""
        identity = None if target is None else _identity(target)[0]
        scope = Scope([_key(workload)], identity, threads, measured_by=measured_by)
        with self.reading() as connection:
            members = candidates(connection, scope, self.toolchain, None)
            return queries.fastest(connection, [c.series for c in members], limit)

    def history(
        self,
        workload: "Workload | str",
        target: str | None = None,
        *,
        threads: int | None = None,
        measured_by: MeasuredBy | None = None,
    ) -> "list[Chapter]":
        """What every machine and set of versions made of a workload, the oldest first.

        Args:
            target: identity, or name (then every target of that name).
        """
        from tilesmith.records.questions.history import chapters

        scope = Scope([_key(workload)], None, threads, measured_by=measured_by)
        with self.reading() as connection:
            members = candidates(connection, scope, self.toolchain, None)
            wanted = [c for c in members if target in (None, c.of.target, _name(c.of.target))]
            return chapters(connection, wanted)

    def tried(
        self,
        workload: "Workload | str",
        target: Target | str,
        threads: int | None = None,
        *,
        measured_by: MeasuredBy | None = None,
        fresh_only: bool = True,
    ) -> set[str]:
        """Digests of the configurations tried (`config_digest`), for de-duplication.

        Args:
            fresh_only: leave out those tried only with other versions, which deserve another try.
        """
        identity, calibration = _identity(target)
        scope = Scope([_key(workload)], identity, threads, measured_by=measured_by)
        with self.reading() as connection:
            members = candidates(connection, scope, self.toolchain, calibration)
            series = [c.series for c in members if not (fresh_only and c.stale_because)]
            return queries.digests(connection, series)

    def known(
        self,
        workload: "Workload | str",
        target: Target | str,
        threads: int | None = None,
        *,
        measured_by: MeasuredBy | None = None,
        job: int | None = None,
    ) -> list[TuningRecord]:
        """What a job may learn from: last words of the present versions, oldest first, bounded.

        All there are, or a sample where there are more than `warm_up.KNOWN`.

        Args:
            job: only what was there when that job began, and not of its own.
        """
        identity, calibration = _identity(target)
        scope = Scope([_key(workload)], identity, threads, measured_by=measured_by)
        with self.reading() as connection:
            members = candidates(connection, scope, self.toolchain, calibration)
            fresh = [c.series for c in members if not c.stale_because]
            return warm_up.sample(connection, fresh, job)

    def quarantined(
        self, workload: "Workload | str | None" = None, target: Target | str | None = None
    ) -> list[TuningRecord]:
        """Configurations whose last word is that they crashed a worker: not to be tried again."""
        keys = None if workload is None else [_key(workload)]
        scope = Scope(keys, None if target is None else _identity(target)[0])
        with self.reading() as connection:
            return queries.crashed(connection, scope)

    def quarantined_configs(self, workload: "Workload | str", target: Target | str) -> list[Config]:
        """The configurations alone of `quarantined`, oldest first: no more is read."""
        scope = Scope([_key(workload)], _identity(target)[0])
        with self.reading() as connection:
            configs = queries.crashed_configs(connection, scope)
        return [Config.from_json(config) for config in dict.fromkeys(configs)]

    def size(self) -> int | None:
        """Bytes of the database, None where they cannot be known."""
        with self.reading() as connection:
            return queries.size(connection)

    def rows(self) -> int:
        """How many rows of trials there are, superseded ones and whole models among them."""
        counts = self.stats()
        return int(counts["trials"] + counts["measured_again"] + counts["models"])

    def stats(self) -> dict[str, Any]:
        """Counts: trials, measured_again, models, workloads, targets, jobs, by_status,
        by_measured_by, bytes."""
        with self.reading() as connection:
            return queries.stats(connection)


def _in_parts(connection: Connection, asked: Scope, limit: int | None) -> Iterator[Scope]:
    """The scope, or with a limit the same for a few workloads after the other, by their keys."""
    if limit is None or asked.workloads is not None:
        yield asked
        return
    keys, size = queries.keys(connection, asked.operator), max(1, limit // 4)
    for start in range(0, len(keys), size):
        yield asked._replace(workloads=keys[start : start + size])


def _name(identity: str) -> str:
    return identity.rpartition("-")[0]


def _on_hardware(best: Best) -> bool:
    return best.record.result.measured_by == "hardware"


def _key(workload: "Workload | str") -> str:
    return workload if isinstance(workload, str) else workload.key


def _identity(target: Target | str) -> tuple[str, str | None]:
    """A target's identity, and its calibration digest where that can be known."""
    if isinstance(target, str):
        return target, None
    return target.identity, calibration_of(target)
