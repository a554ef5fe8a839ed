"""`Search`: all tasks of a job by one way of measuring: propose, measure, commit, learn.

A round belongs to one task: its strategy proposes a batch, which is measured in chunks; after each
chunk results and the whole state of the search are committed together. The state holds what is
pending of a batch, so that a job killed between two chunks goes on with the next configuration.
Everything else (cost models, history) is derived from the committed trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.structures import default_of, space_of
from tilesmith.search_space.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.cancel import Cancelled, CancelToken
from tilesmith.tuner.cost_model import cost_models
from tilesmith.tuner.feature_source import JudgedFeatures, Learning
from tilesmith.tuner.ledger import Entry, Ledger
from tilesmith.tuner.options import TaskReport, TuneOptions
from tilesmith.tuner.pace import PaceLog
from tilesmith.tuner.predictor import Predictor
from tilesmith.tuner.pretrained import pretrained
from tilesmith.tuner.runner import Runner
from tilesmith.tuner.scheduler import schedulers
from tilesmith.tuner.strata import propose_batch, strata
from tilesmith.tuner.strategy import Json, strategies
from tilesmith.tuner.task import Trial, TuningState, TuningTask
from tilesmith.tuner.task_search import TaskSearch

_IMPROVEMENT = 1e-3
"""Relative gain that counts as one for early stopping."""
_CARRIED_OVER = 8
_SCREENING_BATCH = 64
NOTHING_PLACED: Mapping[Workload, Placed] = {}
_SEEDS_SERVE = 32
"""Trials after which a task's own results serve as starting points and seeds are dropped."""


class Search:
    """See the module's docstring.

    Args:
        tasks: distinct workloads with their weights.
        runner: measures; its label is the search's.
        save_all: gives the whole job's state, to be committed with each chunk.
        cancel: ends measuring at the next trial, choosing at the next question to the predictor.

    Attributes:
        search_s: seconds spent on everything but measuring: choosing, learning, committing.
        deadline: moment of `time.monotonic()` soon after which choosing ends; no more is measured
            at once than there is time for. None: nothing depends on the clock.
    """

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        target: Target,
        runner: Runner,
        ledger: Ledger,
        options: TuneOptions,
        learning: Learning,
        save_all: Callable[[], Json],
        cancel: CancelToken,
    ) -> None:
        source, model = learning.source, learning.model
        self.runner = runner
        self.options = options
        self.trials = 0
        self.search_s = 0.0
        self.deadline: float | None = None
        self._trial_s = 0.0
        self._screening = not model
        learner = cost_models[model or "residual"]
        judged = isinstance(source, JudgedFeatures)
        self._shown = isinstance(source, JudgedFeatures) and source.analytical
        self._informed = self._shown and not learner.doubts()
        simulated = judged and bool(model) and runner.measured_by == "simulator"
        self._source = source
        self.predictor = Predictor(
            source,
            learner,
            learning=bool(model),
            prior=pretrained(target.family) if simulated else None,
        )
        self.pace = PaceLog(self.predictor)
        self._scheduler = schedulers[options.scheduler]()
        self._ledger = ledger
        self._save_all = save_all
        self._cancel = cancel
        self.tasks = [self._opened(task, target) for task in tasks]

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
            self._recall_earlier()
        self._place(placed)
        for number, search in enumerate(self.tasks):
            state = search.state
            if state.is_new(state.default) and not search.placed:
                search.pending = [state.default]
            more = seeds[number] if seeds else ()
            state.seeds = tuple(dict.fromkeys([*more, *state.seeds]))
            search.note_batch()

    def _place(self, placed: Mapping[Workload, Placed]) -> None:
        """Commit what schedules take inside the model, of tasks that nothing is known of."""
        entries = []
        for search in self.tasks:
            workload, state = search.state.task.workload, search.state
            config, result = placed.get(workload, (None, None))
            if config is None or result is None or state.results or config not in state.space:
                continue
            if result.latency is not None and result.measured_by == self.runner.measured_by:
                search.placed = [config]
                state.record(Trial(config, result))
                self.runner.expect(workload, result.latency)
                entries.append(Entry(workload, Trial(config, result)))
        if entries:
            with self._cancel.shielded():
                self._ledger.commit(entries, self._save_all())

    def resume(self, saved: Json, entries: Sequence[Entry]) -> None:
        """Continue: results of earlier jobs and of this one up to the kill, and the saved state."""
        self._recall_earlier(saved["earlier"])
        self._retrain_at(saved["fitted"])
        by_workload = {search.state.task.workload: search for search in self.tasks}
        mine = [e for e in entries if e.trial.result.measured_by == self.runner.measured_by]
        looks = list(saved.get("looks", ()))
        for entry in mine:
            self._absorb(by_workload[entry.workload], [entry.trial])
            self.pace.replay(looks)
            self._retrain_at(saved["fitted"])
        self.pace.restart()
        for search in self.tasks if saved["tasks"] else ():
            search.load(saved["tasks"][search.state.task.workload.key])
        self.trials = saved["trials"]

    def save(self, finished: bool) -> Json:
        """What `resume` needs beside the committed trials; less for a search that is over."""
        named = {search.state.task.workload.key: search for search in self.tasks}
        return {
            "trials": self.trials,
            "fitted": self.predictor.fitted,
            "earlier": self._earlier,
            "looks": self.pace.looks,
            "tasks": {} if finished else {key: search.save() for key, search in named.items()},
        }

    # -- rounds -----------------------------------------------------------------------------------
    def next_task(self) -> TaskSearch | None:
        """Whose turn it is: defaults and unfinished batches first, then the scheduler's choice."""
        for search in self.tasks:
            if search.pending:
                return search
        chosen = self._scheduler.choose([search.progress() for search in self.tasks])
        return None if chosen is None else self.tasks[chosen]

    def propose(self, search: TaskSearch, limit: int | None) -> None:
        """Fill a task's pending batch; marks the task done if its space is exhausted.

        Raises:
            Cancelled: the token was set or the deadline passed; only the generator has changed.
        """
        state = search.state
        smallest = _SCREENING_BATCH if self._screening else 1
        count = min(self.runner.batch, max(smallest, search.strategy.batch_size(state)))
        count = count if limit is None else min(count, limit)
        with self._choosing():
            if search.strategy.guided:
                self.predictor.train_if_due()
            parts = [] if self._screening else search.strata
            first = [c for c in (state.default, *search.placed) if search.placed]
            proposed = propose_batch(state, search.strategy, parts, count)
            search.pending = list(dict.fromkeys([*first, *proposed]))
        search.done = not search.pending

    def measure(self, search: TaskSearch, limit: int | None) -> None:
        """Measure the next chunk of a task's pending batch and commit what came of it."""
        chunk = self._chunk(search.pending, limit)
        workload = search.state.task.workload
        begun = time.monotonic()
        self.runner.ahead([(workload, config) for config in search.pending], self._cancel)
        results = self.runner.measure([(workload, config) for config in chunk], self._cancel)
        self._trial_s = (time.monotonic() - begun) / max(1, len(results))
        trials = [Trial(c, r) for c, r in zip(chunk, results, strict=False)]
        del search.pending[: len(trials)]
        if not trials:
            return
        best = search.state.best
        with self._cancel.shielded(), self._choosing():
            self._absorb(search, trials)
            self.pace.follow(self.runner)
            self._account(search, trials, best[1] if best else math.inf)
            self._ledger.commit([Entry(workload, trial) for trial in trials], self._save_all())

    def _chunk(self, pending: list[Config], limit: int | None) -> list[Config]:
        """What is measured before the next commit: no more than there is time for."""
        size = len(pending) if self.runner.deterministic else 1
        if self.deadline is not None and self._trial_s:
            size = min(size, max(1, int((self.deadline - time.monotonic()) / self._trial_s)))
        return pending[: size if limit is None else min(size, limit)]

    def replace(self, search: TaskSearch, trials: Sequence[Trial]) -> None:
        """Let results of a second measurement take the place of the first, and commit them."""
        entries = [Entry(search.state.task.workload, trial) for trial in trials]
        with self._cancel.shielded(), self._choosing():
            for trial in trials:
                search.state.record(trial)
            self._ledger.commit(entries, self._save_all())

    # -- reports ----------------------------------------------------------------------------------
    def report(self, search: TaskSearch) -> TaskReport:
        """One task's state for people."""
        state = search.state
        config, latency = state.best or (None, None)
        return TaskReport(
            state.task.workload,
            state.task.weight,
            search.untuned_latency,
            latency,
            config,
            state.layouts(config) if config is not None else ("", ""),
            self.runner.measured_by,
            search.trials,
            self.predictor.accuracy(state),
        )

    def failures(self) -> dict[str, int]:
        """Failed trials of all tasks by status, earlier jobs' included."""
        found: dict[str, int] = {}
        for search in self.tasks:
            for result in search.state.results.values():
                if not result.ok:
                    found[result.status] = found.get(result.status, 0) + 1
        return found

    # -- inside -----------------------------------------------------------------------------------
    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """What runs inside counts as search, not as measuring, even where it is cut short."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.search_s += time.perf_counter() - start

    def _opened(self, task: TuningTask, target: Target) -> TaskSearch:
        workload = task.workload
        template = template_of(workload.operator)
        space = space_of(workload, target)
        label = 0 if self.runner.measured_by == "simulator" else 1
        rng = np.random.default_rng([self.options.seed, label, int(workload.digest, 16)])
        state = TuningState(
            task,
            space,
            default_of(workload, target),
            self.runner.measured_by,
            rng,
            layouts=lambda config: template.layouts(workload, config),
        )
        self.predictor.introduce(state)
        state.predict = lambda configs: self._estimate(state, configs)[0]
        state.estimate = lambda configs: self._estimate(state, configs)
        state.joint = lambda configs: self.predictor.joint(state, configs)
        state.behaviour = lambda configs: self._source.behaviour(state, configs)
        carried = (
            carried_over(config, space)
            for config in self._ledger.similar(workload, self.runner.measured_by)
        )
        state.seeds = tuple(dict.fromkeys(c for c in carried if c is not None))[:_CARRIED_OVER]
        state.excluded = {c for c in self._ledger.quarantined(workload) if c in space}
        parts = strata(space, state.layouts, self.options.layout_trials)
        state.shown, state.informed = self._shown, self._informed
        strategy = strategies[self.options.strategy]()
        return TaskSearch(state, strategy, parts, template.flops(workload))

    def _estimate(
        self, state: TuningState, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self._check()
        if self.deadline is not None and isinstance(self._source, JudgedFeatures):
            self._source.judge_ahead(state, configs, self._check)
        return self.predictor.estimate(state, configs)

    def _check(self) -> None:
        """Raise `Cancelled` if choosing is to end."""
        self._cancel.check()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Cancelled

    def _recall_earlier(self, counts: dict[str, int] | None = None) -> None:
        """Learn what earlier jobs measured; `counts` limits it to what the first start saw."""
        self._earlier: dict[str, int] = {}
        for search in self.tasks:
            workload: Workload = search.state.task.workload
            known = self._ledger.before(workload, self.runner.measured_by)
            known = known[: counts[workload.key]] if counts is not None else known
            self._earlier[workload.key] = len(known)
            distinct = {
                trial.config: trial for trial in known if trial.config in search.state.space
            }
            self._absorb(search, list(distinct.values()))
        if counts is None:
            self.predictor.train_if_due()

    def _retrain_at(self, fitted: int) -> None:
        """Train the models when as many trials are remembered as the saved models had seen."""
        if self.predictor.seen == fitted != self.predictor.fitted:
            self.predictor.train()

    def _absorb(self, search: TaskSearch, trials: Sequence[Trial]) -> None:
        """Take results into the state, strategy, predictor and the runner's expectations."""
        state = search.state
        new = [t for t in trials if t.config not in state.results or t.config in search.placed]
        search.placed = [c for c in search.placed if all(c != t.config for t in trials)]
        for trial in trials:
            state.record(trial)
        state.excluded |= {t.config for t in trials if t.result.status == "crash"}
        search.strategy.observe(state, trials)
        self.predictor.remember(state, new, self.pace.now)
        if state.best is not None:
            self.runner.expect(state.task.workload, state.best[1])

    def _account(self, search: TaskSearch, trials: Sequence[Trial], before: float) -> None:
        search.trials += len(trials)
        self.trials += len(trials)
        seconds = sum(trial.result.elapsed for trial in trials)
        search.cost += len(trials) if self.runner.deterministic else seconds
        best = search.state.best
        if not search.pending:
            search.note_batch()
        if search.trials >= _SEEDS_SERVE:
            search.state.seeds = ()
        if best is not None and best[1] < before * (1 - _IMPROVEMENT):
            search.since_best = 0
        else:
            search.since_best += len(trials)
        patience = self.options.early_stopping
        if patience is not None and search.since_best >= patience:
            search.done = True
            search.pending = []
