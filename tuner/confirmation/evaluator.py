"""Candidates judged in place, inside the whole model, by a `ModelEvaluator`.

First it is confirmed that the tuned model is no slower than the untuned one (`confirmed`): kernels
that were measured while the machine was busy, or that disturb their neighbours, may make it so.
Where they do, the model stays untuned, but for the groups of kernels that are found to make it
faster, by halves.

Then candidates are re-ranked (`reranked`). What is compared is always the model as it would be
compiled from the records, with and without one more schedule pinned: only a pin that makes the
whole model faster is kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilesmith.search_space.results.model_evaluator import Choices, ModelEvaluator
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.tasks.options import NOTHING, InPlace

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
    first = versus(evaluator, {}, usual, is_late)
    comparison = InPlace({}, first.first_s, first.first_s, 1, untuned_s=first.second_s)
    if not first.is_slower:
        return comparison
    choices, seconds, compared = usual, first.second_s, 1
    groups = _halves(changed)
    while groups and not is_over(compared):
        group = groups.pop(0)
        tried = {workload: c for workload, c in choices.items() if workload not in group}
        result = versus(evaluator, tried, choices, is_late)
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
        """Whether so many pairs agree that chance alone hardly makes them (a sign test)."""
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
    evaluator: ModelEvaluator,
    first: Choices,
    second: Choices,
    is_late: Callable[[], bool] = in_time,
) -> Versus:
    """Run a model in two forms, again and again until it is clear which is faster, or `_LOOKS`
    times, or until it is late."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(_LOOKS):
        results = evaluator.measure([first, second])
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
