"""What a job does with the whole model: foretells at its start, confirms and re-ranks at its end.

All of it is done by a `ModelEvaluator`, in the job's own time: what building and running the model
costs at the start tells how much is kept back for the end, when candidates are judged in place.

First it is confirmed that the tuned model is no slower than the untuned one (`confirmed`): kernels
that were measured while the machine was busy, or that disturb their neighbours, may make it so.
Where they do, the model stays untuned, but for the groups of kernels that are found to make it
faster, by halves.

Then candidates are re-ranked (`reranked`). What is compared is always the model as it would be
compiled from the records, with and without one more schedule pinned: only a pin that makes the
whole model faster is kept.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilesmith.records.trials.counting import TIMED_IN_MODEL
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Choices, ModelEvaluator, Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.confirmation.in_place import NOTHING, InPlace, ModelParts
from tilesmith.tuner.confirmation.publish import contenders
from tilesmith.tuner.search.search import Search
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.options import TuneOptions

Variants = Callable[[Workload, Choices], Sequence[Config]]
"""Neighbours of the schedule that a workload has under some choices."""

_LOOKS = 4
"""Comparisons of a model with the untuned one until they count even if they do not agree."""
_SIGMAS = 2.0
"""How far from even the pairs of a comparison have to fall for it to be clear."""
_EQUAL = 0.005
"""Relative difference up to which what is not clear counts as no difference."""


def in_time() -> bool:
    """There is always time for another look."""
    return False


def confirmed(
    evaluator: ModelEvaluator,
    workloads: Sequence[Workload],
    is_over: Callable[[int], bool],
    is_late: Callable[[], bool] = in_time,
) -> InPlace:
    """The tuned model where it is no slower than the untuned one, else a mixture that is not.

    Args:
        workloads: those whose best on record is not the untuned schedule, in any order in which
            neighbours are alike (kernels that matter beside kernels that matter).
        is_over: asked before each comparison but the first with how many there were.
        is_late: asked whether a comparison that is not clear yet has to do.
    """
    usual = dict(evaluator.untuned())
    changed = [workload for workload in workloads if workload in usual]
    if not changed:
        return NOTHING
    is_over(0)  # this one is made whatever is left of the time
    first = versus(partial(evaluator.measure, [{}, usual]), is_late)
    comparison = InPlace({}, first.first_s, first.first_s, 1, untuned_s=first.second_s)
    if not first.is_slower:
        return comparison
    choices, seconds, compared = usual, first.second_s, 1
    groups = _halves(changed)
    while groups and not is_over(compared):
        group = groups.pop(0)
        tried = {workload: c for workload, c in choices.items() if workload not in group}
        result = versus(partial(evaluator.measure, [tried, choices]), is_late)
        compared += 1
        if result.is_faster:
            choices, seconds = tried, result.first_s
        elif len(group) > 1:
            groups += _halves(group)
    return InPlace(choices, seconds, seconds, compared, first.second_s, frozenset(choices))


def _halves(workloads: Sequence[Workload]) -> list[Sequence[Workload]]:
    middle = (len(workloads) + 1) // 2
    return [part for part in (workloads[:middle], workloads[middle:]) if part]


@dataclass(frozen=True)
class Versus:
    """A model in two forms, run in turns.

    Attributes:
        ratios: of each pair of runs beside each other, the first form's seconds over the second's.
        first_s, second_s: median seconds; None of a form that does not run.
    """

    ratios: tuple[float, ...]
    first_s: float | None
    second_s: float | None

    @property
    def ratio(self) -> float:
        """Median of the ratios: what others do to the machine meets both runs of a pair alike."""
        if not self.ratios:
            return math.inf if self.first_s is None else 0.0
        return statistics.median(self.ratios)

    @property
    def is_clear(self) -> bool:
        """Whether a sign test rejects that both sides win equally often."""
        ahead = sum(ratio < 1 for ratio in self.ratios)
        return abs(ahead - len(self.ratios) / 2) > _SIGMAS * math.sqrt(len(self.ratios)) / 2

    @property
    def is_slower(self) -> bool:
        """Whether the first form is slower."""
        return self.ratio > (1 if self.is_clear else 1 + _EQUAL)

    @property
    def is_faster(self) -> bool:
        """Whether the first form is beyond doubt faster."""
        return self.ratio < 1 - _EQUAL and (self.is_clear or not self.ratios)


def versus(
    measure: Callable[[], Sequence[MeasureResult]], is_late: Callable[[], bool] = in_time
) -> Versus:
    """Run a model in two forms, again and again until it is clear which is faster, or `_LOOKS`
    times, or until it is late.

    Args:
        measure: runs both in turns, as often each.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(_LOOKS):
        results = measure()
        if any(result.latency is None for result in results):
            return Versus((), *(result.latency for result in results))
        for samples, result in zip(taken, results, strict=True):
            samples += result.samples
        pairs = zip(*taken, strict=True)
        comparison = Versus(
            tuple(one / other for one, other in pairs), *map(statistics.median, taken)
        )
        if comparison.is_clear or is_late():
            break
    return comparison


def reranked(
    evaluator: ModelEvaluator,
    candidates: Mapping[Workload, Sequence[Config]],
    is_over: Callable[[int], bool] = lambda _: False,
    variants: Variants | None = None,
    known: InPlace = NOTHING,
) -> InPlace:
    """The candidate of each workload that makes the model fastest, one workload after another.

    Args:
        candidates: the top few of each workload; workloads that matter most first.
        is_over: asked before each comparison with how many there were; ends it with what is known.
        variants: what to try after all candidates, until nothing makes the model faster.
        known: what the model is compared with, as `confirmed` gives it.
    """
    best = known
    for start in evaluator.starts():
        if is_over(best.compared):
            break
        best = _tried(evaluator, best, dict(start))
        if best.untuned_s is None:  # what `untuned` leaves to the first of them
            best = replace(best, untuned_s=evaluator.measure([start])[0].latency)
    for workload, rival in ((w, rival) for w, rivals in candidates.items() for rival in rivals):
        if is_over(best.compared):
            break
        best = _tried(evaluator, best, {**best.choices, workload: rival})
    if variants is not None:
        best = _climbed(evaluator, best, list(candidates), is_over, variants)
    if best.choices == known.choices:
        return replace(best, after_s=best.before_s)
    return _settled(evaluator, known, best)


def _climbed(
    evaluator: ModelEvaluator,
    best: InPlace,
    workloads: Sequence[Workload],
    is_over: Callable[[int], bool],
    variants: Variants,
) -> InPlace:
    """What is known after rounds over the neighbours of all workloads' schedules, taking turns."""
    tried: set[tuple[Workload, Config]] = set()
    while True:
        before = best.choices
        waiting = {
            workload: [c for c in variants(workload, before) if (workload, c) not in tried]
            for workload in workloads
        }
        for workload, rival in _in_turns(waiting):
            if is_over(best.compared):
                return best
            tried.add((workload, rival))
            best = _tried(evaluator, best, {**best.choices, workload: rival})
        if best.choices == before:
            return best


def _in_turns(waiting: Mapping[Workload, Sequence[Config]]) -> Iterator[tuple[Workload, Config]]:
    """The first of each, then the second of each, and so on."""
    for turn in range(max(map(len, waiting.values()), default=0)):
        for workload, rivals in waiting.items():
            if turn < len(rivals):
                yield workload, rivals[turn]


def _tried(evaluator: ModelEvaluator, known: InPlace, tried: dict[Workload, Config]) -> InPlace:
    """What is known after one more comparison."""
    now_s, tried_s, better = _compared(evaluator, known.choices, tried)
    if better:  # look twice: the luckiest of many comparisons is not the best
        now_s, tried_s, better = _compared(evaluator, known.choices, tried)
    choices, seconds = (tried, tried_s) if better else (known.choices, now_s)
    before_s = now_s if known.before_s is None else known.before_s
    compared = known.compared + 1
    return replace(known, choices=choices, before_s=before_s, after_s=seconds, compared=compared)


def _compared(
    evaluator: ModelEvaluator, usual: Choices, tried: Choices
) -> tuple[float | None, float | None, bool]:
    """Seconds of the model under two alternatives, None where one fails, and whether the second
    is clearly faster."""
    before, after = (result.latency for result in evaluator.measure([usual, tried]))
    if before is None or after is None:
        return before, after, after is not None
    return before, after, after < before * (1 - evaluator.near_tie)


def _settled(evaluator: ModelEvaluator, known: InPlace, pinned: InPlace) -> InPlace:
    """All new pins against none, in turns: gains seen far apart do not add up on a drifting
    machine."""
    before_s, after_s, better = _compared(evaluator, known.choices, pinned.choices)
    if better:
        reverted = {w for w in pinned.reverted if pinned.choices.get(w) == known.choices.get(w)}
        return replace(pinned, before_s=before_s, after_s=after_s, reverted=frozenset(reverted))
    return replace(
        pinned, choices=known.choices, before_s=before_s, after_s=before_s, reverted=known.reverted
    )


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

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        """What workloads take untuned, so that none needs a trial to be told unimportant; only
        where time is what is short."""
        limit, begun = self._options.time_limit_s, time.monotonic()
        if limit is None or begun - self._started > _MOST * limit:
            return {}  # where getting ready took so long, there is no time for it
        placed = self._evaluator.measure_untuned()
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
