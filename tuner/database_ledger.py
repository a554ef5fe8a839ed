"""`DatabaseLedger`: a tuning job's reading and writing, on `records.Database`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tilesmith.records.database import Database
from tilesmith.records.queries import Filter
from tilesmith.records.record import TuningRecord
from tilesmith.search_space.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.ledger import Entry, JobEnd
from tilesmith.tuner.strategy import Json
from tilesmith.tuner.task import Trial


class DatabaseLedger:
    """One job in a database. See `tuner.ledger.Ledger` for the guarantees.

    Args:
        database: open and writable.
        target: what is tuned for; its facts are kept with the job.
        job: number of the job, from `start` or `resume`.
    """

    def __init__(self, database: Database, target: Target, threads: int, job: int) -> None:
        self._database = database
        self._target = target
        self._threads = threads
        self.job = job

    @classmethod
    def start(
        cls,
        database: Database,
        target: Target,
        threads: int,
        *,
        command: str,
        seed: int,
        strategy: str,
    ) -> DatabaseLedger:
        """Register a new job; `command` is what asks for it again and finds it to resume."""
        job = database.start_job(command, seed=seed, strategy=strategy, targets=[target])
        return cls(database, target, threads, job)

    @classmethod
    def resume(
        cls, database: Database, target: Target, threads: int, *, command: str
    ) -> DatabaseLedger | None:
        """The newest unfinished job of that command, from its start if it never got to a trial.

        None if there is none to go on with.

        Raises:
            JobError: somebody is at work on it.
        """
        for job in database.jobs(command=command):
            if job.status != "finished":
                database.take_over(job.id)
                return cls(database, target, threads, job.id)
        return None

    def saved_state(self) -> Json:
        text = self._database.job_state(self.job)
        return None if text is None else json.loads(text)

    def before(self, workload: Workload, measured_by: MeasuredBy) -> list[Trial]:
        """All of them, or where there are very many a sample (`records.warm_up`)."""
        records = self._database.known(
            workload, self._target, self._threads, measured_by=measured_by, job=self.job
        )
        return [Trial(record.config, record.result) for record in records]

    def of_job(self) -> list[Entry]:
        records = self._database.query(Filter(job=self.job), sort="oldest", limit=None)
        return [Entry(r.workload, Trial(r.config, r.result)) for r in records if not r.is_of_model]

    def similar(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        """Of this workload with other thread counts, then of other workloads."""
        own = self._database.layout_bests([workload], self._target, None, measured_by=measured_by)
        bests = [
            best
            for found in own.values()
            for best in found.values()
            if best.record.threads != self._threads
        ]
        bests += self._database.nearest(
            workload, self._target, self._threads, measured_by=measured_by
        )
        return [best.record.config for best in bests]

    def quarantined(self, workload: Workload) -> list[Config]:
        return self._database.quarantined_configs(workload, self._target)

    def commit(self, entries: Sequence[Entry], state: Json) -> None:
        records = [
            TuningRecord.of(
                entry.workload,
                self._target,
                entry.trial.config,
                entry.trial.result,
                threads=self._threads,
            )
            for entry in entries
        ]
        self._database.add(records, job=self.job, job_state=json.dumps(state))

    def finish(self, end: JobEnd, message: str) -> None:
        self._database.finish_job(self.job, end, message)
