"""`ModelEvaluator`: judging candidates in place, inside the whole model.

The tuner measures kernels alone; the compiler knows what surrounds them (layout conversions,
caches filled by neighbours). The two do not import each other: the tuner declares this protocol,
the compiler fulfils it, the front door passes it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from search_space.config import Config
from search_space.workload import Workload

_GAIN = 0.005
"""Relative gain of the whole model below which the tuner's own order stands."""


class ModelEvaluator(Protocol):
    """Measures or predicts a whole model."""

    def latency(self, choices: Mapping[Workload, Config]) -> float:
        """Seconds of the model with these schedules; other workloads keep their best on record."""
        ...


def reranked(
    evaluator: ModelEvaluator, candidates: Mapping[Workload, Sequence[Config]]
) -> dict[Workload, Config]:
    """The candidate of each workload that makes the model fastest, one workload after another.

    Args:
        candidates: for each workload its top few, the tuner's favourite first; workloads that
            matter most first. A rival replaces the favourite only if the model gains more than 0.5
            %.
    """
    choices = {workload: found[0] for workload, found in candidates.items() if found}
    latency = evaluator.latency(choices)
    for workload, found in candidates.items():
        for rival in found[1:]:
            tried = {**choices, workload: rival}
            seconds = evaluator.latency(tried)
            if seconds < latency * (1 - _GAIN):
                choices, latency = tried, seconds
    return choices
