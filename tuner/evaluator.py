"""Re-ranking: candidates judged in place, inside the whole model, by a `ModelEvaluator`.

What is compared is always the model as it would be compiled from the records, with and without one
more schedule pinned: only a pin that makes the whole model faster is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilesmith.search_space.model_evaluator import Choices, ModelEvaluator
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workload import Workload


@dataclass(frozen=True)
class InPlace:
    """What re-ranking came to.

    Attributes:
        choices: schedules that make the model faster than the best on record do.
        before_s, after_s: seconds of the model without and with them; None if nothing was compared.
        compared: candidates tried in place.
    """

    choices: dict[Workload, Config] = field(default_factory=dict)
    before_s: float | None = None
    after_s: float | None = None
    compared: int = 0


Variants = Callable[[Workload, Choices], Sequence[Config]]
"""Neighbours of the schedule that a workload has under some choices."""


def reranked(
    evaluator: ModelEvaluator,
    candidates: Mapping[Workload, Sequence[Config]],
    is_over: Callable[[int], bool] = lambda _: False,
    variants: Variants | None = None,
) -> InPlace:
    """The candidate of each workload that makes the model fastest, one workload after another.

    Args:
        candidates: the top few of each workload; workloads that matter most first.
        is_over: asked before each comparison with how many there were; ends it with what is known.
        variants: what to try after all candidates, until nothing makes the model faster.
    """
    found = InPlace()
    for start in evaluator.starts():
        if is_over(found.compared):
            break
        found = _tried(evaluator, found, dict(start))
    for workload, rival in ((w, rival) for w, rivals in candidates.items() for rival in rivals):
        if is_over(found.compared):
            break
        found = _tried(evaluator, found, {**found.choices, workload: rival})
    if variants is not None:
        found = _climbed(evaluator, found, list(candidates), is_over, variants)
    if not found.choices:
        return replace(found, after_s=found.before_s)
    return _settled(evaluator, found)


def _climbed(
    evaluator: ModelEvaluator,
    found: InPlace,
    workloads: Sequence[Workload],
    is_over: Callable[[int], bool],
    variants: Variants,
) -> InPlace:
    """What is known after rounds over the neighbours of all workloads' schedules, taking turns."""
    tried: set[tuple[Workload, Config]] = set()
    while True:
        before = found.choices
        waiting = {
            workload: [c for c in variants(workload, before) if (workload, c) not in tried]
            for workload in workloads
        }
        for workload, rival in _in_turns(waiting):
            if is_over(found.compared):
                return found
            tried.add((workload, rival))
            found = _tried(evaluator, found, {**found.choices, workload: rival})
        if found.choices == before:
            return found


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
    return InPlace(choices, before_s, seconds, known.compared + 1)


def _compared(
    evaluator: ModelEvaluator, usual: Choices, tried: Choices
) -> tuple[float | None, float | None, bool]:
    """Seconds of the model under two alternatives, None where one fails, and whether the second
    is clearly faster."""
    before, after = (result.latency for result in evaluator.measure([usual, tried]))
    if before is None or after is None:
        return before, after, after is not None
    return before, after, after < before * (1 - evaluator.near_tie)


def _settled(evaluator: ModelEvaluator, found: InPlace) -> InPlace:
    """All pins against none, in turns: gains seen far apart do not add up on a drifting machine."""
    before_s, after_s, better = _compared(evaluator, {}, found.choices)
    if better:
        return InPlace(found.choices, before_s, after_s, found.compared)
    return InPlace({}, before_s, before_s, found.compared)
