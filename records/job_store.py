"""`JobStore`: the part of `Database` that speaks of jobs, their leases, and their workers.

A job that this object started or took over is *held*: its commits are fenced by the lease, see
`records.jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilesmith.records import jobs, workers
from tilesmith.records.clock import now
from tilesmith.records.jobs import Lease
from tilesmith.records.record import Job, JobStatus, WorkerReport
from tilesmith.records.store import Store
from tilesmith.records.writing import Writer
from tilesmith.search_space.errors import JobError
from tilesmith.search_space.target import Target


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
        with self.writing() as connection:
            for target in targets:
                Writer(connection).target_id(target)
            job = jobs.start(connection, command, seed, strategy, state, lease.token)
        lease.job = job
        self._leases[job] = lease
        return job

    def take_over(self, job: int) -> None:
        """Go on with a job that nobody runs: from now on it is this process's.

        Raises:
            JobError: it runs, here or elsewhere; the message says who runs it and since when.
            DatabaseError: there is no such job.
        """
        with self.reading() as connection:
            seen, moment = jobs.row_of(connection, job), now(connection)
        found = jobs.job_of(seen, moment)
        if not found.runs:
            lease = Lease(job, seen["step"])
            with self.writing() as connection:
                taken = jobs.take_over(connection, seen, lease.token)
            if taken:
                self._leases[job] = lease
                return
            lease.release()
            with self.reading() as connection:
                found = jobs.job_of(jobs.row_of(connection, job), now(connection))
        raise JobError(f"{running(found)}; wait for it or end it, or start a job of your own")

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
        with self.writing() as connection:
            jobs.finish(connection, job, status, message, lease)
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

    # -- workers ----------------------------------------------------------------------------------
    def write_workers(self, job: int, reports: Sequence[WorkerReport]) -> None:
        """Keep what workers of a job tell, one row for each name; the server's clock dates it."""
        with self.writing() as connection:
            workers.write(connection, job, reports)

    def workers(self, job: int) -> list[WorkerReport]:
        """What the workers of a job last told, by name."""
        with self.reading() as connection:
            return workers.read(connection, job)

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
