"""`Database`: the one door to the tuning records.

    with Database.open("tuning.db") as database:
        job = database.start_job("tilesmith tune ...", seed=0, strategy="evolutionary")
        database.add(records, job=job, job_state=state)
        best = database.best(workload, target, threads=1)

Guarantees: every method is one transaction of its own, so that a process that dies leaves all of
it or nothing; any number of processes and threads may write at once (each process opens its own
`Database`); errors are `DatabaseError` (what the database is) or `JobError` (what became of it
meanwhile).
"""

import platform
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tilesmith.records.jobs import job as jobs
from tilesmith.records.opened.job_store import JobStore
from tilesmith.records.opened.machines import MachineStore
from tilesmith.records.questions import queries
from tilesmith.records.questions.bests import Scope, candidates
from tilesmith.records.questions.questions import Questions
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.hardware.target import Target

if TYPE_CHECKING:
    import numpy as np

    from tilesmith.records.exchange import json_lines as exchange
    from tilesmith.records.upkeep import compaction, maintenance, merging

_SERIES_AT_ONCE = 64


class Database(Questions, JobStore, MachineStore):
    """An open tuning database. Make one with `Database.open`, as documented in
    `records.opened.store`.
    """

    # -- writing ----------------------------------------------------------------------------------
    def add(
        self,
        records: Iterable[TuningRecord],
        *,
        job: int | None = None,
        job_state: str | None = None,
    ) -> None:
        """Write trials, and the state of their job, in one transaction.

        Args:
            records: in the order they were made; what they leave open (toolchain, host, time) is
                filled in. Nothing is left out: a configuration measured again is a trial of its
                own, and its last word.
            job: the job they belong to, for those that name none. If it is held here, the
                transaction happens once and under its lease (`records.jobs`).
            job_state: the job's state after these results; None leaves it as it is.

        Raises:
            DatabaseError: read-only, or no such job.
            LeaseLost: another process has taken the job over; nothing was written.
            UnavailableError: the server is away, for longer than `be_patient` allows.
            GoneError: the database was deleted or replaced while the job ran.
            JobError: the disk is full, or another process holds the lock; nothing was written.
        """
        from tilesmith.records.trials.writing import BATCH, Writer, incoming

        now, host = datetime.now(UTC), platform.node()
        batch = [incoming(record, self.toolchain, host, now) for record in records]
        for item in batch:
            item.values["job_id"] = item.values["job_id"] or job
        lease = None if job is None else self._leases.get(job)

        def write() -> None:
            with self.writing() as connection:
                if lease is not None and not jobs.advance(connection, lease, job_state):
                    return
                if lease is None and job is not None and job_state is not None:
                    jobs.change(connection, job, state=job_state)
                writer = Writer(connection)
                for start in range(0, len(batch), BATCH):
                    writer.insert(batch[start : start + BATCH], deduplicate=False)

        if lease is None:
            write()
        else:
            self.patiently(write)
            lease.step += 1

    def register_target(self, target: Target) -> None:
        """Keep a target's facts, for people and for `db show`."""
        from tilesmith.records.trials.writing import Writer

        with self.writing() as connection:
            Writer(connection).target_id(target)

    # -- exchange ---------------------------------------------------------------------------------
    def export_lines(self, where: queries.Filter | None = None) -> Iterator[str]:
        """The trials as JSON Lines (`records.exchange`), a header first, without line ends."""
        from tilesmith.records.exchange.lines import export_lines

        with self.reading() as connection:
            yield from export_lines(connection, where or queries.Filter())

    def import_lines(
        self,
        lines: Iterable[str],
        *,
        name: str = "import",
        skip_bad: bool = False,
        processes: int = 1,
    ) -> "exchange.ImportReport":
        """Write the trials of an export, all or none; those already there are left out.

        Args:
            name: how messages call the source.
            skip_bad: leave bad lines out and report them, instead of refusing the whole.
            processes: how many read lines; the result is the same.

        Raises:
            DatabaseError: not an export, of a newer format, or with a bad line (named).
        """
        from tilesmith.records.exchange import json_lines as exchange

        with self.writing() as connection:
            return exchange.import_lines(connection, lines, name, skip_bad, processes)

    def merge(self, *others: "Database") -> "merging.MergeReport":
        """Bring other databases' trials, jobs, machines and targets into this one.

        One transaction: all of it or nothing. The order of the others changes nothing.
        """
        from tilesmith.records.upkeep import merging

        sources = {other.name: other for other in others}
        before, theirs = self.overview(), {n: other.overview() for n, other in sources.items()}
        with ExitStack() as stack:
            opened = {n: stack.enter_context(other.reading()) for n, other in sources.items()}
            reports = merging.merge(stack.enter_context(self.writing()), opened, self.toolchain)
        return merging.MergeReport(reports, merging.standings(self.overview(), before, theirs))

    def diff(self, other: "Database") -> "list[merging.Difference]":
        """What this and another database hold best, the most different first."""
        from tilesmith.records.upkeep import merging

        return merging.diff(self.overview(), other.overview())

    # -- maintenance ------------------------------------------------------------------------------
    def verify(
        self,
        measure: "maintenance.Measure",
        rng: "np.random.Generator",
        *,
        count: int | None = 10,
        target: str | None = None,
        heal: bool = False,
    ) -> "list[maintenance.Drift]":
        """Measure a sample of the best records of single operators again and compare.

        Args:
            measure: measures records with the present versions.
            count: how many, the stale ones first; None takes all.
            target: only records of this target (name or identity).
            heal: also write what was measured: the last word on each configuration.
        """
        from tilesmith.records.upkeep import maintenance

        bests = [best for best in self.overview(target=target) if not best.record.is_of_model]
        chosen = maintenance.sample(bests, count, rng)
        renewed = measure([best.record for best in chosen])
        if heal:
            self.add(renewed)
        return [maintenance.Drift(*pair) for pair in zip(chosen, renewed, strict=True)]

    def check(self) -> list[str]:
        """What is wrong with the file or its contents, a sentence each; [] for an intact one."""
        from tilesmith.records.upkeep import maintenance

        with self.reading() as connection:
            return maintenance.check(connection)

    def compact_trials(self, before: datetime, *, dry_run: bool = False) -> "compaction.Compaction":
        """Shorten what older trials tell, by the rule of `records.upkeep.compaction`.

        Series after series, some of them in a transaction: ended midway, it can be done again.
        """
        from tilesmith.records.upkeep import compaction

        done = compaction.Compaction()
        with self.reading() as connection:
            series = compaction.series_to_compact(connection)
        for start in range(0, len(series), _SERIES_AT_ONCE):
            some = series[start : start + _SERIES_AT_ONCE]
            with self.reading() if dry_run else self.writing() as connection:
                compaction.compact(connection, some, before, done, dry_run=dry_run)
        if done.trials and not dry_run:
            self.compact()
        return done

    def prune(self, what: "maintenance.Pruning", *, dry_run: bool = False) -> int:
        """Remove what is not worth keeping and give its space back; how many trials went.

        Args:
            dry_run: change nothing; how many trials would go.
        """
        from tilesmith.records.upkeep import maintenance

        with self.writing() as connection:
            everything = candidates(connection, Scope(), self.toolchain, None)
            tried = connection.begin_nested()
            removed = maintenance.prune(connection, everything, what)
            if dry_run:
                tried.rollback()
        if not dry_run:
            self.compact()
        return removed
