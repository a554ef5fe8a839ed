"""The tuning loop: from tasks to the best schedules on record.

    tune(tasks, target, ledger, [simulator_runner, hardware_runner], TuneOptions(trials=500))

Runners are used in turn: with two, the simulator screens (each task's best simulated
configurations become starting points) and the hardware measures the few that matter. For each, the
untuned default is measured first and stays a candidate. The job ends when the trials or the time
are spent, every task is exhausted or stopped early, or the token is cancelled; then the top
candidates are confirmed (see `tuner.confirmation.publish`), and the best of each task is reported.

Guarantees: every finished trial is in the ledger, together with the state that resumes the job;
with deterministic runners and a trial budget the same seed gives the same trials, interrupted or
not, whoever measures and in whatever order results come in (`tuner.search.rounds`).
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilesmith.records.trials.counting import TrialCounts
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.choosers.chooser import choose_elsewhere, resume_rounds
from tilesmith.tuner.choosers.threads import one_thread
from tilesmith.tuner.confirmation.in_place import NOTHING, InPlace
from tilesmith.tuner.confirmation.publish import DriftWatch, confirm
from tilesmith.tuner.confirmation.whole_model import WholeModel
from tilesmith.tuner.learning.learning import UNJUDGED, Judging, learning_of
from tilesmith.tuner.measurement.runner import Runner
from tilesmith.tuner.search.search import Search, SearchJob
from tilesmith.tuner.session.progress import OnProgress, Progress, TaskReport, TuningSummary
from tilesmith.tuner.session.reporting import Rate, failures, final_report, noise, report
from tilesmith.tuner.tasks.cancel import Cancelled, CancelToken, Interrupted
from tilesmith.tuner.tasks.ledger import JobEnd, Ledger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import TuningTask

_STATE_VERSION = 2
_SCREENING_TIME = 0.08
"""Share of the time limit that screening on the simulator may take."""
_SCREENING_S = 0.4
"""Seconds for each task below which there is no screening at all: few would have their turn, and
the hardware's search scores by the same judge."""
_SCREENED_SEEDS = 16
_CONFIRMING_S = 0.4
"""Seconds kept back for the confirmation of each task with rivals; compiling and 15 turns of up to
six of them."""
_CONFIRMING_SHARE = 0.15


def tune(
    tasks: Sequence[TuningTask],
    target: Target,
    ledger: Ledger,
    runners: Sequence[Runner],
    options: TuneOptions | None = None,
    judging: Judging = UNJUDGED,
    *,
    on_progress: OnProgress | None = None,
    cancel: CancelToken | None = None,
) -> TuningSummary:
    """Run or resume a tuning job; see the module's docstring.

    Args:
        tasks: workloads to tune; equal ones are merged, their weights added.
        ledger: results and state; if it holds a state, that job is resumed.
        runners: one, or the simulator before the hardware.
        on_progress: called after every chunk of measurements.
        cancel: ends the job at the next trial.

    Raises:
        InputError: no task or runner, unknown names, or a state of another job or version.
        JobError: no measuring process could be started, or the ledger cannot be written.
        Interrupted: a signal came before anything was measured; the caller marks the job.
    """
    merged = _merged(tasks)
    if not merged or not runners:
        raise InputError("there is nothing to tune: give at least one task and one runner")
    token = cancel or CancelToken()
    job = _Job(merged, target, ledger, runners, options or TuneOptions(), judging, token)
    job.on_progress = on_progress
    try:
        with one_thread():
            job.open()
            job.run()
        in_place = job.in_place()
    except (Interrupted, Exception) as error:
        if not token.torn:
            with contextlib.suppress(TilesmithError):  # the ledger itself may be what failed
                ledger.finish("failed", str(error))
        if not (token.torn and job.is_open):
            raise
        in_place = NOTHING
    with token.shielded():
        summary = job.summary(in_place)
        job.show(ended=summary.tasks)
        end: JobEnd = "interrupted" if summary.ending == "cancelled" else "finished"
        ledger.finish(end, summary.reason)
    return summary


def _merged(tasks: Sequence[TuningTask]) -> list[TuningTask]:
    """One task for each workload, weights added, first come first."""
    merged: dict[Workload, TuningTask] = {}
    for task in tasks:
        known = merged.get(task.workload)
        weight = task.weight + (known.weight if known else 0.0)
        merged[task.workload] = replace(task, weight=weight)
    return list(merged.values())


@dataclass
class _Phase:
    """One way of measuring with its budget; `limit` None: no limit."""

    search: Search
    limit: int | None
    screening: bool
    rate: Rate = field(default_factory=Rate)


class _Job:
    """One run of `tune`."""

    on_progress: OnProgress | None = None
    is_open = False
    """Whether what was measured before is known, so that there is something to sum up."""

    def __init__(
        self,
        tasks: list[TuningTask],
        target: Target,
        ledger: Ledger,
        runners: Sequence[Runner],
        options: TuneOptions,
        judging: Judging,
        cancel: CancelToken,
    ) -> None:
        self._start = _started(options)
        self._ledger = ledger
        self._options = options
        self._active = 0
        self._reason = ""
        self.cancel = cancel
        self.phases = []
        self.model: WholeModel | None = None
        if judging.evaluator is not None:
            self.model = WholeModel(judging.evaluator, options, self._start, cancel)
        self._placed: Mapping[Workload, Placed] = {}
        job = SearchJob(tasks, target, ledger, options, self.save, cancel)
        for position, runner in enumerate(runners):
            screening = position < len(runners) - 1
            learning = learning_of(runner, screening, judging, target, options.cost_model)
            search = Search(job, runner, learning)
            limit = options.screening_trials * len(tasks) if screening else options.trials
            self.phases.append(_Phase(search, limit, screening))

    # -- state ------------------------------------------------------------------------------------
    def open(self) -> None:
        """Resume from the ledger's state, or start anew."""
        saved = self._ledger.saved_state()
        if saved is None:
            self.is_open = True
            if self.model is not None and not self.phases[-1].search.runner.deterministic:
                self.show("building and timing the untuned model", phase=self.phases[-1])
                self._placed = self.model.measure_untuned()
            self._begin()
            return
        saved = _current(saved)
        labels = [phase.search.runner.measured_by for phase in self.phases]
        keys = [t.state.task.workload.key for t in self.phases[0].search.tasks]
        if saved["measured_by"] != labels or saved["workloads"] != keys:
            raise InputError("the saved state is of a job with other tasks or another --measure")
        kept = {"--in-flight": "in_flight", "--choosing": "choosing"}
        for flag, name in kept.items():
            if (saved[name] or 0) != ((given := getattr(self._options, name)) or 0):
                raise InputError(
                    f"the saved state is of a job with {flag} {saved[name]}, not {given}; resume "
                    "it with the same"
                )
        self._active = saved["active"]
        entries = self._ledger.of_job()
        for phase, state in zip(self.phases, saved["searches"], strict=False):
            mine = phase.search.resume(state, entries)
            is_last = phase is self.phases[self._active]
            resume_rounds(phase.search, state, mine if is_last else (), self.cancel)
        self.is_open = True

    def _begin(self, seeds: Sequence[Sequence[Config]] = ()) -> None:
        """The active phase."""
        last = self._active == len(self.phases) - 1
        search = self.phases[self._active].search
        search.begin(seeds, self._placed if last else {})
        choose_elsewhere(search, self.cancel)

    def save(self) -> Json:
        """The whole job's state, as JSON values."""
        searches = [phase.search for phase in self.phases]
        begun = searches[: self._active + 1]
        return {
            "version": _STATE_VERSION,
            "in_flight": self._options.in_flight,
            "choosing": self._options.choosing,
            "measured_by": [search.runner.measured_by for search in searches],
            "models": {s.runner.measured_by: s.known.name for s in searches},
            "workloads": [t.state.task.workload.key for t in searches[0].tasks],
            "active": self._active,
            "searches": [s.save(finished=i < self._active) for i, s in enumerate(begun)],
        }

    # -- running ----------------------------------------------------------------------------------
    def run(self) -> None:
        """All phases from the active one on, then confirmation."""
        while True:
            phase = self.phases[self._active]
            self._reason = self._run_phase(phase)
            if self.cancel.cancelled or self._active == len(self.phases) - 1:
                break
            self._active += 1
            self._begin(_best_configs(phase.search))
        for task in sorted(phase.search.tasks, key=lambda task: -task.seconds):
            if self.cancel.cancelled or self._time_is_up():
                break
            confirm(phase.search, task, self._options.rivals, self.cancel)
            self.show("measuring the best again, in turns")

    def _run_phase(self, phase: _Phase) -> str:
        """Rounds until something ends them; says what."""
        search = phase.search
        watch = DriftWatch(search, self._options.rivals)
        reason = "cancelled"
        while not self.cancel.cancelled:
            search.deadline = self._deadline(phase)
            left = None if phase.limit is None else phase.limit - search.trials
            if left is not None and left <= 0:
                reason = "all trials are spent"
                break
            if self._is_over(search):
                reason = "the time limit is reached"
                self._join_what_is_there(phase)
                break
            try:
                reason = self._fill(search, left)
            except Cancelled:
                continue  # stopped, or out of time: the conditions above tell
            if not len(search.rounds):
                break
            try:
                search.begin_rounds(left)
                search.join(left)
            except Cancelled:
                continue
            watch.check(self.cancel)
            self.show()
        search.abandon()
        if search.elsewhere is not None:
            search.elsewhere.close()
        return "cancelled" if self.cancel.cancelled else reason

    def _fill(self, search: Search, left: int | None) -> str:
        """Propose until as many rounds are under way as the job keeps; if fewer can be, why."""
        while len(search.rounds) <= search.in_flight:
            free = None if left is None else left - search.rounds.trials
            if free is not None and free <= 0:
                return "all trials are spent"
            if self._is_over(search):
                return "the time limit is reached"
            if not search.propose(free):
                return "every task is exhausted or stopped early"
            search.begin_rounds(left)
        return ""

    def _join_what_is_there(self, phase: _Phase) -> None:
        """Of rounds in flight at the end of the time, up to the first that was not begun."""
        search = phase.search
        while len(search.rounds) and search.rounds.first.begun:
            if not search.join(None):
                break
            self.show()

    def _is_over(self, search: Search) -> bool:
        return search.deadline is not None and time.monotonic() >= search.deadline

    def _deadline(self, phase: _Phase) -> float | None:
        """When a way of measuring ends, so that what it found can be confirmed in time."""
        limit = self._options.time_limit_s
        if limit is None:
            return None
        if phase.screening:
            share = _SCREENING_TIME * limit
            enough = share >= _SCREENING_S * len(phase.search.tasks)
            return self._start + (share if enough else 0.0)
        rivals = sum(task.trials > 1 for task in phase.search.tasks)
        confirming = min(_CONFIRMING_S * rivals, _CONFIRMING_SHARE * limit)
        return self._start + limit - confirming - self._kept_back()

    def _kept_back(self) -> float:
        """Seconds at the end that belong to the whole model."""
        return self.model.kept_back_s if self.model is not None else 0.0

    def _time_is_up(self) -> bool:
        limit = self._options.time_limit_s
        gone = time.monotonic() - self._start
        return limit is not None and gone >= limit - self._kept_back()

    def in_place(self) -> InPlace:
        """Compare schedules inside the whole model and return which are best there."""
        if self.model is None:
            return NOTHING
        phase = self.phases[self._active]
        self.show("comparing schedules inside the model")
        return self.model.settled(phase.search)

    # -- reports ----------------------------------------------------------------------------------
    def show(
        self, doing: str = "", ended: Sequence[TaskReport] = (), phase: _Phase | None = None
    ) -> None:
        """Tell where the job is, and what it does beside trials; at its end, what became of its
        tasks."""
        phase = phase or self.phases[self._active]
        phase.rate.note(time.monotonic(), phase.search.trials)
        if self.on_progress is None:
            return
        search, elapsed = phase.search, time.monotonic() - self._start
        left = None
        if self._options.time_limit_s is not None:
            left = max(0.0, self._options.time_limit_s - elapsed)
        elif phase.limit is not None:
            left = phase.rate.seconds(phase.limit - search.trials)
        way, workers = search.runner.measured_by, tuple(search.runner.workers())
        reports = [report(search, task) for task in search.tasks]
        if ended:
            pairs = zip(reports, ended, strict=True)
            reports = [last if last.measured_by == way else now for now, last in pairs]
        self.on_progress(
            Progress(
                way, search.trials, phase.limit, elapsed, left, tuple(reports), workers,
                phase.screening, doing, self._counts(),
            )
        )  # fmt: skip

    def _counts(self) -> TrialCounts:
        """What was done by now; what runners before the last one did is no trial."""
        *screening, last = (phase.search for phase in self.phases)
        again = sum(phase.search.measured_again for phase in self.phases)
        return TrialCounts(last.trials, sum(search.trials for search in screening), again)

    def summary(self, in_place: InPlace) -> TuningSummary:
        """What the job came to; tasks the last runner never reached are reported by an earlier."""
        last = self.phases[self._active].search
        reports = []
        for number, task in enumerate(last.tasks):
            candidate, search = task, last
            for phase in self.phases[: self._active]:
                if candidate.state.best is None:
                    candidate, search = phase.search.tasks[number], phase.search
            reports.append(final_report(search, candidate))
        return TuningSummary(
            self._counts(),
            time.monotonic() - self._start,
            sum(phase.search.search_s for phase in self.phases),
            "cancelled" if self.cancel.cancelled else "finished",
            f"cancelled by {self.cancel.reason}" if self.cancel.cancelled else self._reason,
            tuple(reports),
            failures(last),
            last.runner.drift,
            in_place,
            last.runner.costs.milliseconds(),
            noise(last, reports),
        )


def _current(saved: Json) -> Json:
    """A saved state as this version writes it; `InputError` for one that it does not know.

    Before version 2 at most one round of a task was under way, in the order of the tasks.
    """
    if saved.get("version") == 1:
        for search in saved["searches"]:
            tasks = search["tasks"].items()
            search["rounds"] = [{"workload": k, "configs": task["pending"]} for k, task in tasks]
        return {**saved, "in_flight": 0, "choosing": 0}
    if saved.get("version") != _STATE_VERSION:
        raise InputError("the saved state is of another version; start the job without resuming")
    return {"choosing": 0, **saved}


def _started(options: TuneOptions) -> float:
    """When a job began, as its time limit counts."""
    return time.monotonic() if options.started is None else options.started


def _best_configs(search: Search) -> list[list[Config]]:
    """Each task's best by this search: starting points for the next runner."""
    return [[c for c, _ in task.state.ranked()[:_SCREENED_SEEDS]] for task in search.tasks]
