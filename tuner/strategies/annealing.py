"""Simulated annealing over the predicted score, many chains at once (as AutoTVM's tuner).

Each chain walks by single mutations; a worse neighbour is taken with probability
exp(-(difference in log seconds) / temperature), the temperature falling linearly to zero within a
round. Chains start from where they ended in the round before. The best new points met are
measured.
"""

import numpy as np

from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Population
from tilesmith.tuner.tasks.strategy import Json, Strategy, new_random, pick_diverse, strategies
from tilesmith.tuner.tasks.task import TuningState

_CHAINS = 64
_STEPS = 24
_TEMPERATURE = 0.5
_EPSILON = 0.1


@strategies.register("annealing")
class Annealing(Strategy):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._ends: list[Config] = []

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        met = self._walk(state)
        exploring = int(state.rng.binomial(count, _EPSILON))
        picked = pick_diverse(state, sorted(met, key=met.__getitem__), count - exploring)
        return picked + new_random(state, count - len(picked), taken=picked)

    def _walk(self, state: TuningState) -> dict[Config, float]:
        """Walk all chains; scores of every configuration met."""
        breeder = state.space.breeder
        best = [config for config, _ in state.ranked()[: _CHAINS // 4]]
        starts = list(dict.fromkeys([*best, state.default, *state.seeds, *self._ends]))
        here = breeder.encode(starts[:_CHAINS])
        here = here.joined(breeder.sample(state.rng, _CHAINS - len(here), balanced=True))
        configs = breeder.decode(here)
        energy = state.predict(configs)
        met = dict(zip(configs, energy.tolist(), strict=True))
        for step in range(_STEPS):
            temperature = _TEMPERATURE * (1 - step / _STEPS)
            there = breeder.mutate(here, state.rng)
            configs = breeder.decode(there)
            energies = state.predict(configs)
            met.update(zip(configs, energies.tolist(), strict=True))
            rise = np.clip((energies - energy) / temperature, 0, 700)
            accept = state.rng.random(len(configs)) < np.exp(-rise)
            kinds = np.where(accept, there.kinds, here.kinds)
            here = Population(kinds, np.where(accept[:, None], there.rows, here.rows))
            energy = np.where(accept, energies, energy)
        self._ends = breeder.decode(here)
        return met

    def save(self) -> Json:
        return [dict(config) for config in self._ends]

    def load(self, saved: Json) -> None:
        self._ends = [Config.of(values) for values in saved]
