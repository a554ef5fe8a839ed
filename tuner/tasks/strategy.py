"""`Strategy`: which configurations of a task to measure next.

A strategy is a small class in one file of `strategies/`, registered under its name. It reads the
`TuningState` (space, results so far, predictor, generator) and proposes; it keeps only what cannot
be read from there. Contract, checked by the conformance tests for every registered strategy:

- `propose(state, count)` returns distinct, legal, new configurations, at most `count`, fewer only
  where no more are left; an empty list means that the space is exhausted;
- all randomness comes from `state.rng`;
- `save` gives JSON values from which `load` restores the strategy, such that a run continued from
  a saved strategy and generator proposes what the uninterrupted one would have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.registry import Registry
from tilesmith.tuner.tasks.task import Trial, TuningState

Json = Any
"""A value that `json` can write."""

SMALLEST_BATCH = 8
_ENUMERABLE = 20_000
"""Spaces up to this size are enumerated when random draws find nothing new."""


class Strategy(ABC):
    """One task's search. See the module's docstring for the contract."""

    guided = True
    """Whether it reads `state.predict`, so that a cost model is worth training."""

    @abstractmethod
    def propose(self, state: TuningState, count: int) -> list[Config]:
        """Up to `count` configurations to measure next."""

    def batch_size(self, state: TuningState) -> int:
        """How many it likes to propose next: few at first, early results count most."""
        return max(SMALLEST_BATCH, len(state.results) // 4)

    def observe(self, state: TuningState, trials: Sequence[Trial]) -> None:  # noqa: B027
        """Called after each batch, with `state` already holding the results."""

    def save(self) -> Json:
        """What to restore it from; None where there is nothing."""
        return None

    def load(self, saved: Json) -> None:  # noqa: B027
        """Undo `save`."""


StrategyFactory = Callable[[], Strategy]

strategies: Registry[StrategyFactory] = Registry(
    "strategy", "tilesmith.tuner.strategies", InputError
)


def new_random(state: TuningState, count: int, taken: Iterable[Config] = ()) -> list[Config]:
    """Up to `count` new configurations, uniform over the space, none of them in `taken`.

    Small spaces are enumerated once random draws stop finding anything new, so that the last
    configuration of a space is found too.
    """
    known = set(taken)
    breeder = state.space.breeder
    fresh: list[Config] = []
    for _ in range(4):
        if len(fresh) >= count or state.space.size == 0:
            break
        for config in breeder.decode(breeder.sample(state.rng, 2 * (count - len(fresh)))):
            if len(fresh) < count and config not in known and state.is_new(config):
                known.add(config)
                fresh.append(config)
    if len(fresh) < count and 0 < state.space.size <= _ENUMERABLE:
        left = [c for c in state.space if c not in known and state.is_new(c)]
        order = state.rng.permutation(len(left))[: count - len(fresh)]
        fresh += [left[i] for i in order]
    return fresh


def pick_diverse(
    state: TuningState, ordered: Sequence[Config], count: int, taken: Iterable[Config] = ()
) -> list[Config]:
    """The first `count` new ones of `ordered`, near-duplicates postponed.

    A near-duplicate differs from one picked before in a single knob. They come after all others,
    so that a batch learns more than a row of siblings would.
    """
    picked: list[Config] = []
    postponed: list[Config] = []
    known = set(taken)
    for config in ordered:
        if len(picked) >= count:
            break
        if config in known or not state.is_new(config):
            continue
        known.add(config)
        near = any(_distance(config, other) < 2 for other in picked)
        (postponed if near else picked).append(config)
    return (picked + postponed)[:count]


def _distance(first: Config, second: Config) -> int:
    """Number of knobs that differ."""
    if len(first) != len(second):
        return len(first) + len(second)
    return sum(a != b for a, b in zip(first.items_, second.items_, strict=True))


def generator_state(rng: np.random.Generator) -> Json:
    """A numpy generator's state as JSON values."""
    return rng.bit_generator.state


def restored_generator(saved: Json) -> np.random.Generator:
    """The generator whose state was saved."""
    rng = np.random.default_rng()
    rng.bit_generator.state = saved
    return rng
