"""`DatabaseLedger`: a tuning job's reading and writing, on `records.Database`.

Where the database takes no more, `save` writes what the job has in memory to a file that `db
import` reads.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tilesmith.records.database import Database
from tilesmith.records.jobs.job import LeaseLost
from tilesmith.records.questions.queries import Filter
from tilesmith.records.schema.faults import GoneError
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError, JobError, TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.tasks.ledger import Candidate, JobEnd
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Trial

T = TypeVar("T")


class DatabaseLedger:
    """One job in a database. See `tuner.ledger.Ledger` for the guarantees.

    A server that is away is waited for, as the database is told to (`Database.be_patient`). If it
    stays away, the disk is full, or the database was deleted, replaced or made read-only, what only
    this process knows is saved as a file (`tuner.ledgers.saving`), and the error says where.

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
        self._mine: list[TuningRecord] = []
        self._saved = False
        self._ended = False
        self._borrowed: dict[int, MeasureResult] = {}
        self.packed: Callable[[Workload], Sequence[Config]] = lambda workload: ()
        """What others know of a workload on such machines, beside the database: first to try."""

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
    ) -> "DatabaseLedger":
        """Register a new job; `command` is what asks for it again and finds it to resume."""
        job = database.start_job(command, seed=seed, strategy=strategy, targets=[target])
        return cls(database, target, threads, job)

    @classmethod
    def resume(
        cls, database: Database, target: Target, threads: int, *, command: str
    ) -> "DatabaseLedger | None":
        """The newest unfinished job of that command, from its start if it never got to a trial.

        None if there is none to go on with.

        Raises:
            JobError: somebody is at work on it.
        """
        for job in database.patiently(lambda: database.jobs(command=command)):
            if job.status != "finished":
                database.take_over(job.id)
                return cls(database, target, threads, job.id)
        return None

    def saved_state(self) -> Json:
        text = self._ask(lambda database: database.job_state(self.job))
        return None if text is None else json.loads(text)

    def before(self, workload: Workload, measured_by: MeasuredBy) -> list[Trial]:
        """As `Ledger.before`; of very many results a sample (`records.learning.warm_up`)."""
        where = (workload, self._target, self._threads)
        records = self._ask(lambda d: d.known(*where, measured_by=measured_by, job=self.job))
        return [Trial(workload, record.config, record.result) for record in records]

    def of_job(self) -> list[Trial]:
        records = self._mine = self._ask(
            lambda database: database.query(Filter(job=self.job), sort="oldest", limit=None)
        )
        return [Trial(r.workload, r.config, r.result) for r in records if not r.is_of_model]

    def elsewhere(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        where = (workload, self._target, self._threads)
        bests = self._ask(lambda database: database.elsewhere(*where, measured_by=measured_by))
        return [*self.packed(workload), *(best.record.config for best in bests)]

    def similar(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        """Return bests of this workload with other thread counts, then of other workloads."""
        target, threads = self._target, self._threads
        own = self._ask(
            lambda d: d.layout_bests([workload], target, None, measured_by=measured_by)
        ).get(workload.key, {})
        bests = [best for best in own.values() if best.record.threads != threads]
        bests += self._ask(lambda d: d.nearest(workload, target, threads, measured_by=measured_by))
        return [best.record.config for best in bests]

    def meanwhile(
        self, batch: Sequence[Candidate], measured_by: MeasuredBy
    ) -> Mapping[Candidate, MeasureResult]:
        wanted: dict[Workload, list[Config]] = {}
        for workload, config in batch:
            wanted.setdefault(workload, []).append(config)
        results: dict[Candidate, MeasureResult] = {}
        for workload, configs in wanted.items():
            for record in self._measured_by_others(workload, configs, measured_by):
                results[workload, record.config] = replace(record.result, elapsed=0.0)
        self._borrowed |= {id(result): result for result in results.values()}
        return results

    def _measured_by_others(
        self, workload: Workload, configs: Sequence[Config], measured_by: MeasuredBy
    ) -> list[TuningRecord]:
        about = (self.job, workload, self._target, self._threads, configs)
        return self._ask(lambda d: d.measured_meanwhile(*about, measured_by=measured_by))

    def quarantined(self, workload: Workload) -> list[Config]:
        return self._ask(lambda database: database.quarantined_configs(workload, self._target))

    def commit(self, trials: Sequence[Trial], state: Json) -> None:
        records = [
            TuningRecord.of(
                trial.workload, self._target, trial.config, trial.result, threads=self._threads
            )
            for trial in trials
            if self._borrowed.pop(id(trial.result), None) is None
        ]
        self._mine += records
        with self._saving(records):
            self._database.add(records, job=self.job, job_state=json.dumps(state))

    def finish(self, end: JobEnd, message: str) -> None:
        if self._ended:
            return
        with self._saving([]):
            self._database.finish_job(self.job, end, message)
        self._ended = True

    @contextmanager
    def _saving(self, pending: Sequence[TuningRecord]) -> Iterator[None]:
        """Save the job's trials if the database is gone, or `pending` ones if it takes none."""
        try:
            yield
        except LeaseLost:  # somebody else goes on with the job, and measures them
            raise
        except (JobError, DatabaseError) as error:
            lost = self._mine if isinstance(error, GoneError) else pending
            self._database.be_patient(0.0)
            if self._saved or not lost:
                raise
            self._saved = True
            path = save(self._database, self.job, lost)
            raise type(error)(sentence(error, path, len(lost))) from error

    def _ask(self, question: Callable[[Database], T]) -> T:
        """An answer of the database, waited for while its server is away."""
        return self._database.patiently(lambda: question(self._database))


def save(database: Database, job: int, records: Sequence[TuningRecord]) -> Path | None:
    """Write trials in the exchange format; where, or None if nowhere could be written.

    Beside an SQLite database if its folder is still there, else in the working folder, else among
    temporary files. A file that is there is never overwritten.
    """
    beside = [database.path.parent] if database.path is not None else []
    name = database.path.name if database.path is not None else "tilesmith"
    try:
        lines = _exported(database, records)
    except (OSError, TilesmithError):  # no room for temporary files either
        return None
    for folder in (*beside, Path.cwd(), Path(tempfile.gettempdir())):
        for number in range(1000):
            path = folder / f"{name}.job-{job}{f'-{number}' if number else ''}.jsonl"
            try:
                with path.open("x") as file:
                    file.writelines(f"{line}\n" for line in lines)
            except FileExistsError:
                continue
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                break
            return path.resolve()
    return None


def _exported(database: Database, records: Sequence[TuningRecord]) -> list[str]:
    """The lines of an export, by way of a database of their own, so that one place writes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/saved.db"
        with Database.open(path, toolchain=database.toolchain) as saved:
            saved.add([replace(record, job=None) for record in records])
            return list(saved.export_lines())


def sentence(error: TilesmithError, path: Path | None, count: int) -> str:
    """Return the message for a database that accepts no more trials: where they were saved."""
    if path is None:
        return f"{error}; {count} trials that it does not have could be saved nowhere"
    return (
        f"{error}; {count} trials that it does not have are in '{path}', which "
        "'tilesmith db import' reads"
    )
