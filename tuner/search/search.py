"""`Search`: all tasks of a job by one way of measuring: propose, measure, commit, learn.

A round belongs to one task: its strategy proposes a batch. Rounds are joined in the order of their
proposal, as far behind it as the job's distance says (`tuner.search.rounds`). Where that is 0 a
round is measured in chunks when its turn comes, else it is begun when it is proposed. What came of
a chunk or a round is committed with the whole state of the search, which holds the rounds under
way, so that a job killed at any moment goes on with the next configuration. Everything else (cost
models, history) is derived from the committed trials.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.learning.learning import Learning
from tilesmith.tuner.learning.pace import PaceLog
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.measurement.runner import Runner
from tilesmith.tuner.measurement.sharing import SharedMeasuring
from tilesmith.tuner.search.elsewhere import Elsewhere
from tilesmith.tuner.search.rounds import Round, RoundQueue
from tilesmith.tuner.search.task_search import (
    TaskSearch,
    flops_of,
    opened_state,
    parts_of,
    starting_points,
    told_of_round,
)
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.tasks.cancel import Cancelled, CancelToken
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.ledger import Ledger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.scheduler import schedulers
from tilesmith.tuner.tasks.strategy import Json, strategies
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

_SCREENING_BATCH = 64
NOTHING_PLACED: Mapping[Workload, Placed] = {}


@dataclass(frozen=True)
class SearchJob:
    """What all searches of a job share.

    Attributes:
        tasks: distinct workloads with their weights.
        save_all: gives the whole job's state, to be committed with results.
        cancel: ends measuring at the next trial, choosing at the next question to the predictor.
    """

    tasks: Sequence[TuningTask]
    target: Target
    ledger: Ledger
    options: TuneOptions
    save_all: Callable[[], Json]
    cancel: CancelToken


class Search:
    """See the module's docstring.

    Args:
        runner: measures; its label is the search's.

    Attributes:
        rounds: those under way.
        chooses: whether it does that itself, and learns for it; always where a strategy keeps more
            than the state of its task, or a space was given.
        elsewhere: whoever chooses else.
        in_flight: how many are under way while the results of one are waited for.
        search_s: seconds spent on everything but measuring: choosing, learning, committing; but for
            those in which something was measured meanwhile.
        deadline: moment of `time.monotonic()` soon after which choosing ends; no more is measured
            at once than there is time for. None: nothing depends on the clock.
    """

    def __init__(self, job: SearchJob, runner: Runner, learning: Learning) -> None:
        self.source, self.model = source, model = learning.source, learning.model
        self.target, self.options = job.target, job.options
        self.elsewhere: Elsewhere | None = None
        self.runner = runner
        self.trials = self.measured_again = 0
        self.rounds = RoundQueue()
        asked = job.options.in_flight
        self.in_flight = runner.in_flight if asked is None else asked
        self.search_s = 0.0
        self.deadline: float | None = None
        self._trial_s = 0.0
        self._screening = not model
        learner = cost_models[model or "residual"]
        self._shown = isinstance(source, JudgedFeatures) and source.analytical
        self._informed = self._shown and not runner.deterministic
        self.known = learning.known
        self.predictor = Predictor(source, learner, bool(model), self.known.model)
        self.pace = PaceLog(self.predictor)
        self._scheduler = schedulers[job.options.scheduler]()
        self._ledger, self._save_all, self._cancel = job.ledger, job.save_all, job.cancel
        self._measuring = SharedMeasuring(runner, job.ledger)
        self.tasks = [self._opened(task, job.target) for task in job.tasks]
        keeps = any(t.strategy.save() is not None or t.state.task.given for t in self.tasks)
        self.chooses = not job.options.choosing or keeps

    # -- life -------------------------------------------------------------------------------------
    def begin(
        self,
        seeds: Sequence[Sequence[Config]] = (),
        placed: Mapping[Workload, Placed] = NOTHING_PLACED,
    ) -> None:
        """Start anew: learn what earlier jobs measured, and put the defaults first in line.

        Args:
            seeds: more starting points for each task.
            placed: what untuned schedules take inside the model. A task that is known by one has
                its default measured in its first turn, which comes when it matters most.
        """
        with self._choosing():
            self.recall()
        self._place(placed)
        for number, search in enumerate(self.tasks):
            state = search.state
            if state.is_new(state.default) and not search.placed:
                self.rounds.add(search, [state.default])
            more = seeds[number] if seeds else ()
            state.seeds = starting_points(state, self.predictor.score, more)
            search.note_batch()

    def _place(self, placed: Mapping[Workload, Placed]) -> None:
        """Commit what schedules take inside the model, of tasks that nothing is known of."""
        trials = []
        for search in self.tasks:
            workload, state = search.state.task.workload, search.state
            config, result = placed.get(workload, (None, None))
            if config is None or result is None or state.results or config not in state.space:
                continue
            if result.latency is not None and result.measured_by == self.runner.measured_by:
                search.placed = [config]
                trials.append(Trial(workload, config, result))
                state.record(trials[-1])
                self.runner.expect(workload, result.latency)
        if trials:
            with self._cancel.shielded():
                self._ledger.commit(trials, self._save_all())

    def resume(self, saved: Json, trials: Sequence[Trial]) -> list[Trial]:
        """Continue: results of earlier jobs and of this one up to the kill, and the saved state.

        Returns:
            those of `trials` that are this search's; its rounds are for the caller to load.
        """
        self.recall(saved["earlier"])
        self._retrain_at(saved["fitted"])
        by_workload = {search.state.task.workload: search for search in self.tasks}
        mine = [t for t in trials if t.result.measured_by == self.runner.measured_by]
        looks = list(saved.get("looks", ()))
        for trial in mine:
            self._absorb(by_workload[trial.workload], [trial])
            self.pace.replay(looks)
            self._retrain_at(saved["fitted"])
        self.pace.restart()
        for search in self.tasks if saved["tasks"] else ():
            search.load(saved["tasks"][search.state.task.workload.key])
        self.trials, self.measured_again = saved["trials"], saved.get("measured_again", 0)
        return mine

    def save(self, finished: bool) -> Json:
        """What `resume` needs beside the committed trials; less for a search that is over."""
        named = {search.state.task.workload.key: search for search in self.tasks}
        return {
            "trials": self.trials,
            "measured_again": self.measured_again,
            "fitted": self.predictor.fitted,
            "earlier": self._earlier,
            "looks": self.pace.looks,
            "tasks": {} if finished else {key: search.save() for key, search in named.items()},
            "rounds": [] if finished else self.rounds.save(),
            "elsewhere": self.elsewhere.save() if self.elsewhere is not None else None,
        }

    # -- rounds -----------------------------------------------------------------------------------
    def propose(self, limit: int | None) -> bool:
        """Choose whose turn it is and put a round of it under way; whether there was anybody left.

        A task whose space is exhausted is done, and puts nothing under way.

        Raises:
            Cancelled: the token was set or the deadline passed. What was chosen by then is lost:
                nothing more may be committed by a job that is to be resumed.
        """
        search = self._next()
        if search is None:
            return False
        state, strategy = search.state, search.strategy
        smallest = _SCREENING_BATCH if self._screening else 1
        count = min(self.runner.batch, max(smallest, strategy.batch_size(state)))
        count = count if limit is None else min(count, limit)
        if self.elsewhere is not None:
            with self._choosing():
                self.elsewhere.propose(search, count)
            return True
        with self._choosing():
            if strategy.guided:
                self.predictor.train_if_due()
            first = [c for c in (state.default, *search.placed) if search.placed]
            first = [config for config in first if config not in state.pending]
            proposed = search.propose(count, at_once=self.in_flight <= 1)
            configs = list(dict.fromkeys([*first, *proposed]))
        self.rounds.add(search, configs)
        search.done = not configs
        return True

    def _next(self) -> TaskSearch | None:
        """Whose turn it is; the judge is asked of a task before it gets its first."""
        while True:
            chosen = self._scheduler.choose([search.progress() for search in self.tasks])
            if chosen is None or not self.tasks[chosen].waits_for_forecast:
                return None if chosen is None else self.tasks[chosen]
            with self._choosing():
                self.tasks[chosen].foresee()

    def begin_rounds(self, limit: int | None) -> None:
        """Have the runner begin what is under way, at most `limit` trials of it."""
        if not self.in_flight:
            return  # each chunk is begun when it is waited for
        left = self.rounds.trials if limit is None else limit
        if self.elsewhere is not None:
            self.elsewhere.settle_ready()
        for one in self.rounds:
            allowed = one.configs[: max(0, left)]
            left -= len(allowed)
            new = allowed[sum(len(begun.batch) for begun in one.begun) :]
            batch = [(one.task.state.task.workload, config) for config in new]
            size = 1 if self.runner.in_flight else max(1, len(batch))
            for start in range(0, len(batch), size):
                piece = batch[start : start + size]
                one.begun.append(self._measuring.begin(piece, self._cancel))

    def join(self, limit: int | None) -> bool:
        """Wait for the oldest round, or its next chunk, and commit what came of it, if anything."""
        oldest = self.rounds.first
        search, workload = oldest.task, oldest.task.state.task.workload
        if oldest.is_open and self.elsewhere is not None:
            self.elsewhere.settle(oldest)
            self.begin_rounds(limit)
        if not oldest.configs:
            self.rounds.take(0)
            search.done = True
            return True
        results = self._results(oldest, limit)
        trials = [Trial(workload, c, r) for c, r in zip(oldest.configs, results, strict=False)]
        if not trials:
            return False
        best = search.state.best
        with self._cancel.shielded(), self._choosing():
            self.rounds.take(len(trials))
            self._absorb(search, trials)
            self.pace.follow(self.runner)
            self._account(search, trials, best[1] if best else math.inf, is_over=not oldest.configs)
            self._ledger.commit(trials, self._save_all())
            told_of_round(search.state, trials)
            if self.elsewhere is not None:
                self.elsewhere.follow(trials)
        return True

    def abandon(self) -> None:
        """Nothing of what is under way is waited for any more."""
        for one in self.rounds:
            while one.begun:
                self._measuring.abandon(one.begun.pop())

    def _results(self, oldest: Round, limit: int | None) -> list[MeasureResult]:
        """Of the first of a round's configurations."""
        if self.in_flight:
            if not oldest.begun:
                self.begin_rounds(limit)
            if not oldest.begun:
                return []
            return self._measuring.finish(oldest.begun.pop(0), self._cancel, self.deadline)
        workload, begin = oldest.task.state.task.workload, time.monotonic()
        batch = [(workload, config) for config in oldest.configs]
        self.runner.ahead(batch, self._cancel)
        chunk = batch[: self._chunk(len(batch), limit)]
        results = self._measuring.finish(self._measuring.begin(chunk, self._cancel), self._cancel)
        self._trial_s = (time.monotonic() - begin) / max(1, len(results))
        return results

    def _chunk(self, pending: int, limit: int | None) -> int:
        """How many are measured before the next commit: no more than there is time for."""
        size = pending if self.runner.deterministic else 1
        if self.deadline is not None and self._trial_s:
            size = min(size, max(1, int((self.deadline - time.monotonic()) / self._trial_s)))
        return size if limit is None else min(size, limit)

    def replace(self, search: TaskSearch, trials: Sequence[Trial]) -> None:
        """Replace results by those of a second measurement, and commit these."""
        trials = [trial.again() for trial in trials]
        with self._cancel.shielded(), self._choosing():
            self.measured_again += len(trials)
            for trial in trials:
                search.state.record(trial)
            self._ledger.commit(trials, self._save_all())

    # -- inside -----------------------------------------------------------------------------------
    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """What runs inside counts as search, not as measuring, even where it is cut short."""
        start, busy = time.perf_counter(), self.runner.busy_s
        try:
            with self.runner.beside():
                yield
        finally:
            alone = time.perf_counter() - start - (self.runner.busy_s - busy)
            self.search_s += max(0.0, alone)

    def _opened(self, task: TuningTask, target: Target) -> TaskSearch:
        seed = self.options.seed
        state = opened_state(task, target, self.runner.measured_by, seed, self._ledger)
        self.predictor.introduce(state)
        state.predict = lambda configs: self._estimate(state, configs)[0]
        state.estimate = lambda configs: self._estimate(state, configs)
        state.joint = lambda configs: self.predictor.joint(state, configs)
        state.behaviour = lambda configs: self.source.behaviour(state, configs)
        if self._shown and not self._screening and task.given is None:
            state.judged = lambda configs: self._judged(state, configs)
        state.doubt = lambda: self.predictor.doubt(state)
        parts = [] if self._screening else parts_of(state, self.options.layout_trials)
        state.shown, state.informed = self._shown, self._informed
        return TaskSearch(state, strategies[self.options.strategy](), parts, flops_of(task))

    def _estimate(
        self, state: TuningState, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self._judge_ahead(state, configs)
        return self.predictor.estimate(state, configs)

    def _judge_ahead(self, state: TuningState, configs: Sequence[Config]) -> None:
        """Have the judge asked in pieces, between which choosing may be ended."""
        self._check()
        if self.deadline is not None and isinstance(self.source, JudgedFeatures):
            self.source.judge_ahead(state, configs, self._check)

    def _judged(self, state: TuningState, configs: Sequence[Config]) -> NDArray[np.float64]:
        self._judge_ahead(state, configs)
        return self.predictor.judged(state, configs)

    def _check(self) -> None:
        """Raise `Cancelled` if choosing is to end."""
        self._cancel.check()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Cancelled

    def recall(self, counts: dict[str, int] | None = None) -> None:
        """Learn what earlier jobs measured; `counts` limits it to what the first start saw."""
        self._earlier: dict[str, int] = {}
        self._recalled: dict[str, list[Trial]] = {}
        for search in self.tasks:
            workload: Workload = search.state.task.workload
            known = self._ledger.before(workload, self.runner.measured_by)
            known = known[: counts[workload.key]] if counts is not None else known
            self._earlier[workload.key] = len(known)
            distinct = {
                trial.config: trial for trial in known if trial.config in search.state.space
            }
            self._absorb(search, list(distinct.values()))
            self._recalled[workload.key] = list(distinct.values())
        if counts is None:
            self.predictor.train_if_due()

    def earlier(self, search: TaskSearch) -> list[Trial]:
        """Return the trials of a task that earlier jobs measured."""
        return self._recalled.get(search.state.task.workload.key, [])

    def learn(self, search: TaskSearch, trials: Sequence[Trial], pace: float) -> None:
        """Follow trials that another process joined; one by one, so that parting them differently
        changes nothing, though what they are is judged at once.
        """
        self.source.describe(search.state, [trial.config for trial in trials])
        for trial in trials:
            self._absorb(search, [trial], pace)

    def _retrain_at(self, fitted: int) -> None:
        """Train the models when as many trials are remembered as the saved models had seen."""
        if self.predictor.seen == fitted != self.predictor.fitted:
            self.predictor.train()

    def _absorb(
        self, search: TaskSearch, trials: Sequence[Trial], pace: float | None = None
    ) -> None:
        """Take results into the state, strategy, predictor and the runner's expectations."""
        state = search.state
        new = [t for t in trials if t.config not in state.results or t.config in search.placed]
        search.placed = [c for c in search.placed if all(c != t.config for t in trials)]
        for trial in trials:
            state.record(trial)
        state.excluded |= {t.config for t in trials if t.result.status == "crash"}
        search.strategy.observe(state, trials)
        if self.chooses:
            self.predictor.remember(state, new, self.pace.now if pace is None else pace)
        if state.best is not None:
            self.runner.expect(state.task.workload, state.best[1])

    def _account(
        self, search: TaskSearch, trials: Sequence[Trial], before: float, is_over: bool
    ) -> None:
        """Note what trials cost and brought; a task may be stopped by it."""
        at_once = not self.in_flight
        seconds = sum(trial.result.elapsed for trial in trials)
        search.note(trials, float(len(trials)) if self.runner.deterministic else seconds)
        self.trials += len(trials)
        if is_over:
            search.note_batch()
        # rounds in flight are joined by prefixes where a job is stopped: each trial counts alone
        for part in [trials] if at_once else [[trial] for trial in trials]:
            before = search.note_gain(part, before, self.options.early_stopping)
        if search.done and at_once and not is_over:
            self.rounds.take(len(self.rounds.first.configs))
