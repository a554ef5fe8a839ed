"""The yardstick: evolutionary search with the published settings of TVM's MetaSchedule.

Population 512, 4 generations, mutation probability 0.85, no crossover, epsilon 0.05, at most a
fifth of the first generation from measured records, 64 measured at a time. Only for comparison.
"""

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.search.evolution import Evolution, evolve
from tilesmith.tuner.tasks.strategy import Strategy, new_random, pick_diverse, strategies
from tilesmith.tuner.tasks.task import TuningState

_POPULATION = 512
_MEASURED_SHARE = 0.2
_EPSILON = 0.05
_BATCH = 64
_BREEDING = Evolution(
    population=_POPULATION,
    generations=4,
    mutation=0.85,
    crossover=0.0,
    fresh=0.15,
    elite=0.0,
    selection=2.0,
)


@strategies.register("metaschedule")
class MetaSchedule(Strategy):
    """See the module's docstring."""

    def batch_size(self, state: TuningState) -> int:
        return _BATCH

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        seeds = [c for c, _ in state.ranked()[: int(_POPULATION * _MEASURED_SHARE)]]
        exploring = int(state.rng.binomial(count, _EPSILON))
        ordered = evolve(state, seeds, _BREEDING)
        picked = pick_diverse(state, ordered, count - exploring)
        return picked + new_random(state, count - len(picked), taken=picked)
