"""Random search: uniform over the space, no repetition. The yardstick all others must beat."""

from __future__ import annotations

from search_space.config import Config
from tuner.strategy import Strategy, new_random, strategies
from tuner.task import TuningState


@strategies.register("random")
class RandomSearch(Strategy):
    """Uniform draws without repetition."""

    guided = False

    def propose(self, state: TuningState, count: int) -> list[Config]:
        return new_random(state, count)
