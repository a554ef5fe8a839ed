"""Evolutionary search guided by the cost model: the default.

Each round breeds a population from the best measured configurations, the default, starting points
carried over from similar workloads, and random ones; the best predicted new configurations are
measured, a share `epsilon` of the batch is random, so that a wrong model is found out.
"""

from __future__ import annotations

from search_space.config import Config
from tuner.evolution import Evolution, evolve
from tuner.strategy import Strategy, new_random, pick_diverse, strategies
from tuner.task import TuningState

_BREEDING = Evolution()
_EPSILON = 0.1
_MEASURED_SEEDS = 48


@strategies.register("evolutionary")
class Evolutionary(Strategy):
    """See the module's docstring. Stateless: all it needs is in the `TuningState`."""

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        best = [config for config, _ in state.ranked()[:_MEASURED_SEEDS]]
        seeds = list(dict.fromkeys([*best, state.default, *state.seeds]))
        first = pick_diverse(state, state.seeds, count // 2) if not state.results else []
        exploring = int(state.rng.binomial(count, _EPSILON))
        ordered = evolve(state, seeds, _BREEDING)
        exploiting = max(0, count - exploring - len(first))
        picked = first + pick_diverse(state, ordered, exploiting, taken=first)
        return picked + new_random(state, count - len(picked), taken=picked)
