"""`JobStore`: the part of `Database` that speaks of jobs, their leases, and their workers.

A job that this object started or took over is *held*: its commits are fenced by the lease, see
`records.jobs`.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import RowMapping

from tilesmith.records.jobs import job as jobs
from tilesmith.records.jobs import sharing
from tilesmith.records.jobs.clock import now
from tilesmith.records.jobs.job import Lease
from tilesmith.records.opened.store import Store
from tilesmith.records.trials import counting as trials
from tilesmith.records.trials.counting import TrialCounts
from tilesmith.records.trials.record import (
    Job,
    JobStatus,
    TuningRecord,
    WorkerReport,
    config_digest,
)
from tilesmith.records.trials.toolchain import calibration_of
from tilesmith.records.trials.writing import Writer
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload


class JobStore(Store):
    """See the module's docstring."""

    def start_job(
        self,
        command: str,
        *,
        seed: int,
        strategy: str,
        targets: Sequence[Target] = (),
        state: str | None = None,
    ) -> int:
        """Register a tuning job that this process runs, and facts of its targets; its number."""
        lease = Lease(0)

        def start() -> None:
            with self.writing() as connection:
                for target in targets:
                    Writer(connection).target_id(target)
                lease.job = jobs.start(connection, command, seed, strategy, state, lease.token)
                lease.uid = jobs.uid(connection)

        self.patiently(start)
        self._leases[lease.job] = lease
        return lease.job

    def take_over(self, job: int) -> None:
        """Go on with a job that nobody runs: from now on it is this process's.

        A job of another machine that looks dead is watched for a while first (`jobs.WATCH_S`),
        because the server's clock may have been set.

        Raises:
            JobError: it runs, here or elsewhere; the message says who runs it and since when.
            DatabaseError: there is no such job.
        """
        seen, row, uid = self.patiently(lambda: self._seen(job))
        watched = jobs.is_doubtful(seen, row)
        if watched and self._stirs(seen):
            raise JobError(f"{running(row)}, and alive; wait for it or end it")
        if watched or not row.runs:
            lease = Lease(job, seen["step"], uid)

            def take() -> bool:
                with self.writing() as connection:
                    taken = jobs.take_over(connection, seen, lease.token)
                    return taken or jobs.row_of(connection, job)["lease"] == lease.token

            if self.patiently(take):
                self._leases[job] = lease
                return
            lease.release()
            _, row, _ = self.patiently(lambda: self._seen(job))
        raise JobError(f"{running(row)}; wait for it or end it, or start a job of your own")

    def _seen(self, job: int) -> tuple[RowMapping, Job, str]:
        """A job's row, what it means now, and the database's identity."""
        with self.reading() as connection:
            row = jobs.row_of(connection, job)
            return row, jobs.job_of(row, now(connection)), jobs.uid(connection)

    def _stirs(self, seen: RowMapping) -> bool:
        """Whether a job that was seen gives a sign of life soon, by the time of this process."""
        until = time.monotonic() + jobs.WATCH_S
        while time.monotonic() < until:
            time.sleep(min(0.5, jobs.WATCH_S / 4))
            row, _, _ = self.patiently(lambda: self._seen(seen["id"]))
            if any(row[name] != seen[name] for name in ("heartbeat_at", "step", "lease")):
                return True
        return False

    def beat(self, job: int, progress: Mapping[str, Any] | None = None) -> None:
        """Give a sign of life of a job held here, and tell of its progress (any JSON values).

        Nothing happens once it is held no longer.

        Raises:
            LeaseLost: another process has taken the job over.
        """
        lease = self._leases.get(job)
        if lease is not None:
            with self.writing() as connection:
                jobs.beat(connection, lease, progress)

    def tell(self, job: int, progress: Mapping[str, Any] | None) -> None:
        """Keep the last progress of a job, unless somebody is at work on it."""
        if progress is not None:
            with self.writing() as connection:
                jobs.tell(connection, job, progress)

    def finish_job(self, job: int, status: JobStatus = "finished", message: str = "") -> None:
        """Mark a job as ended: it is no longer held, and can be taken over unless it finished.

        Raises:
            LeaseLost: another process has taken the job over.
        """
        lease = self._leases.get(job)

        def finish() -> None:
            with self.writing() as connection:
                jobs.finish(connection, job, status, message, lease)

        self.patiently(finish)
        if lease is not None:
            lease.release()
            del self._leases[job]

    def job_state(self, job: int) -> str | None:
        """The state last written with `add`; None if there is none."""
        with self.reading() as connection:
            return jobs.state(connection, job)

    def jobs(
        self,
        *,
        command: str | None = None,
        status: JobStatus | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, the newest first, with that command or status if given."""
        with self.reading() as connection:
            return jobs.listed(connection, command, status, limit)

    def job(self, number: int) -> Job:
        """One job; `DatabaseError` if there is none."""
        with self.reading() as connection:
            return jobs.job_of(jobs.row_of(connection, number), now(connection))

    def trial_counts(self, job: Job) -> TrialCounts:
        """Return how many trials a job did: as its last report says, else by counting its rows."""
        counts = trials.told_by(job)
        if counts is not None:
            return counts
        with self.reading() as connection:
            return trials.count(connection, job.id, job.command)

    def now(self) -> datetime:
        """The time of the database server, which its times are to be compared with."""
        with self.reading() as connection:
            return now(connection)

    def measured_meanwhile(
        self,
        job: int,
        workload: "Workload",
        target: Target,
        threads: int,
        configs: Sequence[Config],
        *,
        measured_by: MeasuredBy,
    ) -> list[TuningRecord]:
        """What was measured of configurations since a job began, but not by it.

        Only last words that are still valid: of the present versions, and on simulators of this
        target's calibration.
        """
        with self.reading() as connection:
            series = sharing.series(connection, workload.key, target.identity, threads, measured_by)
            valid = [
                number
                for number, toolchain, calibration in series
                if not toolchain.stale_because(self.toolchain, measured_by)
                and (measured_by == "hardware" or calibration == calibration_of(target))
            ]
            return sharing.since(connection, job, valid, [config_digest(c) for c in configs])

    # -- workers ----------------------------------------------------------------------------------
    def write_workers(self, job: int, reports: Sequence[WorkerReport]) -> None:
        """Keep what workers of a job tell, one row for each name; the server's clock dates it."""
        with self.writing() as connection:
            sharing.report(connection, job, reports)

    def workers(self, job: int) -> list[WorkerReport]:
        """Return the last report of each worker of a job, sorted by name."""
        with self.reading() as connection:
            return sharing.reports_of(connection, job)

    def close(self) -> None:
        """Give the connections back; jobs held here and not finished can be taken over."""
        for lease in self._leases.values():
            lease.release()
        super().close()


def running(job: Job) -> str:
    """Who runs a job, since when and how it was last seen, for a message."""
    seen = "" if job.silent_s is None else f", last seen {max(0.0, job.silent_s):.0f} s ago"
    since = f"{job.started_at:%Y-%m-%d %H:%M} UTC"
    return f"job {job.id} is run by {job.owner or job.host} since {since}{seen}"
