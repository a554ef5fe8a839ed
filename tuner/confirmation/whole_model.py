"""What a job does with the whole model: foretells at its start, confirms and re-ranks at its end.

All of it is done by a `ModelEvaluator`, in the job's own time: what building and running the model
costs at the start tells how much is kept back for the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from tilesmith.records.trials.counting import TIMED_IN_MODEL
from tilesmith.search_space.results.model_evaluator import ModelEvaluator, Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.confirmation.evaluator import confirmed, reranked
from tilesmith.tuner.confirmation.publish import contenders
from tilesmith.tuner.search.search import Search
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.options import NOTHING, InPlace, ModelParts, TuneOptions

_BUILDS, _RUNS = 1.0, 80
"""What its confirmation takes: as many times as long as the untuned model took to be built, and as
many runs of its distinct kernels. Two models are built, of schedules whose code is mostly there."""
_GRACE = 0.05
"""Share of the time limit that the confirmation may end after it; it is left out where it would
take longer."""
_MOST = 0.4
"""Share of the time limit that is kept back at most."""


class WholeModel:
    """See the module's docstring.

    Args:
        started: when the job began (`time.monotonic`).
    """

    def __init__(
        self, evaluator: ModelEvaluator, options: TuneOptions, started: float, cancel: CancelToken
    ) -> None:
        self._evaluator = evaluator
        self._options = options
        self._started = started
        self._cancel = cancel
        self._looked_s = 0.0
        self._model_s = 0.0

    @property
    def kept_back_s(self) -> float:
        """Seconds at the end of a job with a time limit that belong to the whole model."""
        limit = self._options.time_limit_s
        if limit is None:
            return 0.0
        return max(self._evaluator.share * limit, min(self._needed_s, _MOST * limit))

    @property
    def _needed_s(self) -> float:
        """What the confirmation will take, as far as is known."""
        return _BUILDS * self._looked_s + _RUNS * self._model_s

    def foretold(self) -> Mapping[Workload, Placed]:
        """What workloads take untuned, so that none needs a trial to be told unimportant; only
        where time is what is short."""
        limit, begun = self._options.time_limit_s, time.monotonic()
        if limit is None or begun - self._started > _MOST * limit:
            return {}  # where getting ready took so long, there is no time for it
        placed = self._evaluator.foretold()
        self._looked_s = time.monotonic() - begun
        self._model_s = sum(result.latency or 0.0 for _, result in placed.values())
        return {w: (c, replace(r, message=TIMED_IN_MODEL)) for w, (c, r) in placed.items()}

    def settled(self, search: Search) -> InPlace:
        """The schedules that make the whole model fastest, found in the time kept back for it."""
        if self._cancel.cancelled:
            return NOTHING
        evaluator = self._evaluator
        limit, now = self._options.time_limit_s, time.monotonic()
        if limit is not None and now + self._needed_s > self._started + (1 + _GRACE) * limit:
            return NOTHING
        deadline, most = now + evaluator.share * (now - self._started), float("inf")
        if limit is not None:
            deadline = self._started + limit
        elif evaluator.trials_each:  # nothing may depend on the clock
            deadline, most = float("inf"), search.trials // evaluator.trials_each
        shown = evaluator.shown()

        def weight(task: TaskSearch) -> float:
            return shown.get(task.state.task.workload, 0.0) if shown else task.seconds

        measured = [task for task in search.tasks if task.state.best is not None]
        heaviest = sorted(measured, key=lambda task: -weight(task))
        candidates = {
            task.state.task.workload: contenders(task.state, evaluator.rivals, evaluator.luck)
            for task in heaviest
        }
        begun: list[float] = []
        building = 1 if evaluator.varies else 0  # the first builds what the others have then

        def is_over(done: int) -> bool:
            """Whether one more comparison as long as those before would end too late."""
            at_end = time.monotonic()
            begun.append(at_end)
            if done > building:
                at_end += (at_end - begun[building]) / (done - building)
            return self._cancel.cancelled or done >= most or at_end >= deadline

        changed = [t.state.task.workload for t in heaviest if not t.state.is_untuned]
        known = confirmed(evaluator, changed, is_over, lambda: time.monotonic() >= deadline)
        variants = partial(self._variants, search) if evaluator.varies else None
        best = reranked(evaluator, candidates, is_over, variants, known)
        return replace(best, parts=self._parts(search, best))

    def _parts(self, search: Search, best: InPlace) -> ModelParts | None:
        """The model as it will be compiled, kernel by kernel; None where nothing was compared."""
        if best.after_s is None or self._cancel.cancelled:
            return None
        known = {task.state.task.workload: task.state.results for task in search.tasks}
        alone = in_place = added = 0.0
        kernels = self._evaluator.kernels(best.choices)
        for workload, config, seconds in kernels:
            result = known.get(workload, {}).get(config)
            if result is None or result.latency is None:
                added += seconds
            else:
                alone, in_place = alone + result.latency, in_place + seconds
        return ModelParts(alone, in_place, added) if kernels else None

    def _variants(
        self, search: Search, workload: Workload, choices: Mapping[Workload, Config]
    ) -> list[Config]:
        """Schedules that differ in one knob from what a workload has under `choices`, shuffled."""
        (state,) = (t.state for t in search.tasks if t.state.task.workload == workload)
        usual = choices.get(workload) or (state.best[0] if state.best else state.default)
        breeder = state.space.breeder
        near = breeder.decode(breeder.neighbours(breeder.encode([usual])))
        order = np.random.default_rng(self._options.seed).permutation(len(near))
        return list(dict.fromkeys(near[place] for place in order))
