"""Random search: uniform over the space, no repetition. The yardstick all others must beat."""

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.tasks.strategy import Strategy, new_random, strategies
from tilesmith.tuner.tasks.task import TuningState


@strategies.register("random")
class RandomSearch(Strategy):
    """Uniform draws without repetition."""

    guided = False

    def propose(self, state: TuningState, count: int) -> list[Config]:
        return new_random(state, count)
