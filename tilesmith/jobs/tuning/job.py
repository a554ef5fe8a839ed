"""A tuning job, put together: workloads, target, database, runners, and the search over them.

The one place where tuner, records, simulator and compiler meet; each knows the others not.
"""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tilesmith.compiler.backends.backend import backend_of, measures_models
from tilesmith.display.notebook import in_notebook
from tilesmith.display.progress import progress_display
from tilesmith.jobs.compilation.compiling import SubjectParts, parts_of
from tilesmith.jobs.compilation.in_model import keep
from tilesmith.jobs.notices import LOG
from tilesmith.jobs.packs import with_packs
from tilesmith.jobs.pools import check_workers, cluster_of, runners_of, searched_on
from tilesmith.jobs.requests.request import Resolved, TuneRequest
from tilesmith.jobs.requests.varying import option_words
from tilesmith.jobs.subjects.subject import WeightedWorkload, subject_words
from tilesmith.jobs.subjects.targets import check_schedulable
from tilesmith.jobs.tuning.ending import JobStopped, ended_in_order
from tilesmith.jobs.tuning.heartbeat import Observer, Pause, beating
from tilesmith.jobs.tuning.known import starting_point
from tilesmith.jobs.tuning.machines import can_measure_here, check_measurable_here, noting
from tilesmith.jobs.tuning.replaying import Recorded, recorded_results
from tilesmith.jobs.tuning.summaries import in_model_of, report_of, with_origins
from tilesmith.jobs.tuning.tune_reports import TuneReport
from tilesmith.records.database import Database
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.model_evaluator import ModelEvaluator
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator import judge, judges_as_measured, measure, simulators
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
from tilesmith.tuner.measurement.runner import Runner, RunnerOptions, runners
from tilesmith.tuner.session.progress import TuningSummary
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.tasks.cancel import CancelToken, cancel_on_signals
from tilesmith.tuner.tasks.ledger import Ledger, MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.scheduler import schedulers
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import TuningTask

if TYPE_CHECKING:
    from tilesmith.jobs.pools import Cluster, Fleet

Measure = Literal["simulator", "hardware", "both", "replay"]

NOTHING_TO_RESUME = "a replay writes nothing, so there is nothing to resume; it starts anew"

_ON_HARDWARE = ("hardware", "both")
_SCHEDULER = TuneOptions().scheduler


@dataclass(frozen=True)
class TuningJob:
    """What to tune, for what, how to measure it and how to search.

    Attributes:
        asked: what is tuned, for which target, into which database.
        parts: what its subject comes to.
        resume: whether to go on with the last unfinished job of the same command, if there is one.
        words: subject and options that a command line asks for the same with.
        workers: what does the trials, see `capabilities.fleet.places`; "": this process.
    """

    asked: Resolved
    parts: SubjectParts
    measure: Measure
    resume: bool
    options: TuneOptions
    words: tuple[str, ...]
    workers: str = ""

    @property
    def target(self) -> Target:
        return self.asked.target

    @property
    def threads(self) -> int:
        return self.asked.threads

    @property
    def workloads(self) -> list[WeightedWorkload]:
        return self.parts.workloads

    @property
    def on_hardware(self) -> bool:
        """Whether trials are timed on machines."""
        return self.measure in _ON_HARDWARE

    @property
    def writes(self) -> bool:
        """Whether trials are new ones; those of a replay are in the database already."""
        return self.measure != "replay"


def tuning_job(request: TuneRequest, started: float) -> TuningJob:
    """A job from what its caller named.

    Args:
        started: when the caller asked (`time.monotonic`).

    Raises:
        InputError: subject, target and way of measuring do not go together.
    """
    options = request.options(started)
    asked = request.resolved(calibrate=True)
    parts = parts_of(asked)
    check_schedulable([part.workload for part in parts.workloads], asked.target)
    way = way_of_measuring(request.measure, asked.target)
    if request.resume and way == "replay":
        LOG.info(NOTHING_TO_RESUME)
    workers = "" if request.workers is None else str(request.workers)
    check_workers(workers, way)
    if not workers and way in _ON_HARDWARE:
        check_measurable_here(asked.target)
    words = (*subject_words(request.subject), *option_words(request))
    return TuningJob(asked, parts, way, request.resume, options, words, workers)


def way_of_measuring(asked: str | None, target: Target) -> Measure:
    """How to measure: what was asked for, else every way that the target's family has.

    Raises:
        InputError: no such way, or hardware that is not here.
    """
    ways = ["simulator"] if target.family in simulators else []
    if measures_models(target, "hardware"):
        ways.append("hardware")
    if not ways:
        raise InputError(f"nothing here measures targets of the family '{target.family}'")
    allowed = [*ways, *(["both"] if len(ways) == 2 else [])]
    if asked is None:
        return allowed[-1]  # type: ignore[return-value]
    if asked not in (*allowed, "replay"):
        raise InputError(
            f"target '{target.name}' cannot be measured by '{asked}'; "
            f"one of {', '.join((*allowed, 'replay'))} is expected"
        )
    return asked  # type: ignore[return-value]


def run_job(
    job: TuningJob,
    observer: Observer | None = None,
    cancel: CancelToken | None = None,
    cluster: "Cluster | None" = None,
    pause: Pause | None = None,
) -> TuneReport:
    """Run (or resume) the job; every finished trial is in the database whatever happens.

    Args:
        cluster: that has its workers; None: the job finds its own.
        pause: asked between batches why the job is to wait, which its progress then says. A time
            limit goes on meanwhile.

    Raises:
        DatabaseError: the database cannot be opened or written.
        JobStopped: by a signal or by `cancel`.
        JobError: no worker could be started; the disk is full; the job to resume runs elsewhere.
    """
    if observer is None and in_notebook():
        with progress_display() as shown:
            return run_job(job, shown, cancel, cluster, pause)
    options, database = job.options, str(job.asked.database)
    for registry, name in (
        (strategies, options.strategy),
        (schedulers, options.scheduler),
        (cost_models, options.cost_model or "xgboost"),
    ):
        registry[name]  # an unknown name is refused before a database is made
    token = cancel or CancelToken()
    with (
        cancel_on_signals(token),
        token.left_in_order(Database.open(database, create=job.writes)) as opened,
        cluster_of("" if cluster is not None else job.workers) as own,
    ):
        name = opened.name
        opened.be_patient(may_wait=lambda: not token.cancelled)

        def search(fleet: "Fleet | None", again: bool) -> tuple[TuningSummary, dict[str, str]]:
            asked = replace(job, resume=True) if again else job
            return _searched(asked, opened, fleet, observer, token, pause)

        summary, models = searched_on(
            cluster or own, job.target, job.threads, search, measures=job.on_hardware
        )
        report = replace(report_of(summary), models=models)
        with token.shielded():
            if job.writes:
                tasks = with_origins(report.tasks, opened, job.target, job.threads)
                report = replace(report, tasks=tasks)
    LOG.info("%s done", summary.counts)
    if summary.ending != "cancelled":
        return report
    raise JobStopped(
        report,
        f"stopped by {token.reason} after {summary.counts}, all of them kept in '{name}'; the same "
        "job with --resume goes on",
        token.reason,
    )


def _searched(
    job: TuningJob,
    opened: Database,
    fleet: "Fleet | None",
    observer: Observer | None,
    token: CancelToken,
    pause: Pause | None,
) -> tuple[TuningSummary, dict[str, str]]:
    """The job from its registration, or where it is resumed, to its mark in the database."""
    with token.shielded():
        ledger = _with_packs(_ledger(job, opened), job)
    number = ledger.job if isinstance(ledger, DatabaseLedger) else None
    LOG.info(
        "job %s in '%s': %d workloads on %s, measured by %s",
        "of a replay" if number is None else number, opened.name, len(job.parts.workloads),
        job.target.identity, job.measure,
    )  # fmt: skip
    with ended_in_order(ledger, token, opened.name):
        measuring = _runners(job, opened, fleet)
        watched = noting(opened, fleet, job.on_hardware)
        with watched, beating(opened, number, observer, pause) as observing:
            outcome = _tuned(job, opened, ledger, measuring, observing, token)
        with token.shielded():
            _keep_choices(job, opened, ledger, outcome[0])
    return outcome


def _keep_choices(
    job: TuningJob, database: Database, ledger: Ledger, summary: TuningSummary
) -> None:
    """Record what was found best inside the model, for compiling it."""
    kernels, in_place = job.parts.kernels, summary.in_place
    if kernels is None or in_place.after_s is None or not isinstance(ledger, DatabaseLedger):
        return
    report = in_model_of(summary)
    details = None if report is None else report.to_json()
    number, after_s, threads = ledger.job, in_place.after_s, job.threads
    database.patiently(
        lambda: keep(
            database, kernels, job.target, threads, in_place.choices, after_s, number, details
        )
    )


def _tuned(
    job: TuningJob,
    database: Database,
    ledger: Ledger,
    measuring: Sequence[Runner],
    observer: Observer | None,
    token: CancelToken,
) -> tuple[TuningSummary, dict[str, str]]:
    """The search itself, with its runners, which are closed at its end; and what its scores start
    from, by way of measuring.
    """
    simulated = job.target.family in simulators
    try:
        label = measuring[-1].measured_by
        known, said = starting_point(database, ledger.saved_state(), job.target, label)
        summary = tune(
            [TuningTask(part.workload, part.weight) for part in job.workloads],
            job.target,
            ledger,
            measuring,
            job.options,
            Judging(
                judge=judge if simulated else None,
                is_label=not simulated or judges_as_measured(job.target),
                evaluator=_evaluator(job, database),
                known={label: known},
            ),
            on_progress=observer,
            cancel=token,
        )
        return summary, {label: said}
    finally:
        with token.shielded():
            for runner in measuring:
                runner.close()


def _evaluator(job: TuningJob, database: Database) -> ModelEvaluator | None:
    """Judges schedules inside the model, where it is timed as the trials are."""
    kernels, target = job.parts.kernels, job.target
    way: MeasuredBy = "simulator" if job.measure == "simulator" else "hardware"
    if kernels is None or not job.writes or not measures_models(target, way):
        return None
    if job.workers and way == "hardware" and not can_measure_here(target):
        return None
    return backend_of(target).evaluator(kernels, target, database, job.threads)


def _ledger(job: TuningJob, database: Database) -> Ledger:
    if not job.writes:
        return MemoryLedger()
    command = _signature(job)
    if job.resume:
        ledger = DatabaseLedger.resume(database, job.target, job.threads, command=command)
        if ledger is not None:
            return ledger
    return DatabaseLedger.start(
        database, job.target, job.threads, command=command, seed=job.options.seed,
        strategy=job.options.strategy,
    )  # fmt: skip


def _with_packs(ledger: Ledger, job: TuningJob) -> Ledger:
    """The ledger, which offers what packs know of such machines as starting points, too."""
    packs = with_packs(None, job.asked.packs, job.target)
    if isinstance(ledger, DatabaseLedger) and packs is not None:
        ledger.packed = lambda workload: [
            best.record.config for best in packs.elsewhere(workload, job.target, job.threads)
        ]
    return ledger


def _runners(job: TuningJob, database: Database, fleet: "Fleet | None") -> list[Runner]:
    names = {"both": ("simulator", "hardware")}.get(job.measure, (job.measure,))
    if fleet is not None:
        return runners_of(fleet, names)
    workloads = [part.workload for part in job.workloads]
    recorded: Recorded = {}
    if not job.writes:
        recorded = recorded_results(database, workloads, job.target, job.threads)
    options = RunnerOptions(job.target, threads=job.threads, judge=measure, recorded=recorded)
    return [runners[name](options) for name in names]


def _signature(job: TuningJob) -> str:
    """The command that asks for the job again, and in a comment what must be equal to resume it."""
    keys = "\n".join(f"{part.weight:g} {part.workload.key}" for part in job.workloads)
    digest = hashlib.sha256(keys.encode()).hexdigest()[:16]
    options = job.options
    words = ["tilesmith", "tune", *job.words, "--target", job.target.name]
    words += ["--threads", str(job.threads), "--measure", job.measure]
    words += ["--seed", str(options.seed), "--strategy", options.strategy]
    words += ["--scheduler", options.scheduler] if options.scheduler != _SCHEDULER else []
    words += ["--cost-model", options.cost_model] if options.cost_model else []
    words += ["--in-flight", str(options.in_flight)] if options.in_flight else []
    words += ["--choosing", str(options.choosing)] if options.choosing else []
    return f"{shlex.join(words)}  # {job.target.identity}, workloads {digest}"


def status_of(job: TuningJob) -> str:
    """The status of the newest job that this one would resume; "" if there is none."""
    with Database.open(str(job.asked.database)) as opened:
        jobs = opened.jobs(command=_signature(job))
    return jobs[0].status if jobs else ""
