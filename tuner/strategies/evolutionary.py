"""Evolutionary search guided by the cost model: the default.

Each round breeds a population from the best measured configurations, the default, starting points
carried over from similar workloads, and random ones, and measures the best predicted new ones. Two
shares of a batch do not trust the model as far. Once enough is measured, a share `_LOCAL` goes to
unmeasured neighbours of the very best (where the model cannot tell siblings apart, trying them
does); a share `_EPSILON` is random, so that a wrong model is found out.
"""

from __future__ import annotations

import numpy as np

from search_space.config import Config
from tuner.evolution import Evolution, evolve
from tuner.population import Breeder
from tuner.strategy import Strategy, new_random, pick_diverse, strategies
from tuner.task import TuningState

_BREEDING = Evolution()
_INFORMED_BREEDING = Evolution(population=512, generations=2, crossover=0.3, fresh=0.2)
"""Where scores rank well from the start (an analytical latency), fewer generations do; judging
large generations costs little more than small ones."""
_EPSILON = 0.05
_LOCAL = 0.15
_MEASURED_SEEDS = 24
_ELITE = 3
"""Best measured configurations whose neighbours are tried."""
_NEIGHBOURS = 24
"""Neighbours drawn of each."""


@strategies.register("evolutionary")
class Evolutionary(Strategy):
    """See the module's docstring. Stateless: all it needs is in the `TuningState`."""

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        ranked = [config for config, _ in state.ranked()[:_MEASURED_SEEDS]]
        seeds = list(dict.fromkeys([*ranked, state.default, *state.seeds]))
        picked = pick_diverse(state, state.seeds, count // 2)
        exploring = int(state.rng.binomial(count - len(picked), _EPSILON))
        share = _LOCAL if len(ranked) >= _MEASURED_SEEDS else 0.0
        local = int(state.rng.binomial(count - len(picked) - exploring, share))
        picked += _neighbours(state, ranked[:_ELITE], local, picked)
        ordered = evolve(state, seeds, _INFORMED_BREEDING if state.informed else _BREEDING)
        picked += pick_diverse(state, ordered, count - len(picked) - exploring, taken=picked)
        return picked + new_random(state, count - len(picked), taken=picked)


def _neighbours(
    state: TuningState, elite: list[Config], count: int, taken: list[Config]
) -> list[Config]:
    """Up to `count` new mutants of the elite, best predicted first."""
    breeder = Breeder(state.space)
    parents = breeder.encode(elite)
    if not count or not len(parents):
        return []
    family = parents.take(np.repeat(np.arange(len(parents)), _NEIGHBOURS))
    mutants = list(dict.fromkeys(breeder.decode(breeder.mutate(family, state.rng))))
    order = np.argsort(state.predict(mutants), kind="stable")
    return pick_diverse(state, [mutants[i] for i in order], count, taken)
