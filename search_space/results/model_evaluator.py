"""`ModelEvaluator`: judging schedules in place, inside the whole model.

The tuner measures kernels alone; the compiler knows what surrounds them (layout conversions,
caches filled by neighbours). The two do not import each other: the tuner asks for this protocol, a
family's backend fulfils it, the front door passes it in.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

Choices = Mapping[Workload, Config]
"""Schedules to use whatever the records say."""

Placed = tuple[Config, MeasureResult]
"""A schedule, and what it was measured to take where it stands in a model."""


class ModelEvaluator(Protocol):
    """Measures or predicts a whole model.

    Attributes:
        near_tie: relative gain of the whole model below which the tuner's own order stands.
        share: of a job's time that is kept back for it.
        rivals, luck: how many candidates of each pair of layouts are worth its time, and within
            what factor of the best alone.
        trials_each: where results repeat exactly, trials of a job without time limit that pay for
            one comparison, so that the job repeats too; 0: its clock decides.
        varies: whether it is exact and quick enough to try what no trial has measured.
    """

    near_tie: float
    share: float
    rivals: int
    luck: float
    trials_each: int
    varies: bool

    def shown(self) -> Mapping[Workload, float]:
        """Seconds of the model that each workload accounts for in it; empty where it is not known
        better than by its latency alone."""
        ...

    def untuned(self) -> Choices:
        """Schedules that make the model what it is without any tuning, to prove that tuning has
        made it no slower; empty where `starts` has them, or latencies are exact sums."""
        ...

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        """What each workload takes in the model as it is untuned, before anything is tuned; without
        those, or empty, where that is not known sooner than by trials."""
        ...

    def kernels(self, choices: Choices) -> Sequence[tuple[Workload, Config, float]]:
        """Every kernel that the model runs under `choices`, conversions of layouts included, with
        its seconds where it stands; empty where that is not known."""
        ...

    def starts(self) -> Sequence[Choices]:
        """Whole assignments to compare with the best on record before single schedules are."""
        ...

    def measure(self, alternatives: Sequence[Choices]) -> list[MeasureResult]:
        """The model under each alternative, measured in turns.

        Args:
            alternatives: schedules to use whatever the records say; other workloads keep the best
                on record. Alternatives that come to the same program have the same samples.
        """
        ...
