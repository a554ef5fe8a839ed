"""Exhaustive search: every configuration in the space's own order; for spaces one can afford."""

import itertools
from collections.abc import Iterator

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.tasks.strategy import Json, Strategy, strategies
from tilesmith.tuner.tasks.task import TuningState


@strategies.register("exhaustive")
class Exhaustive(Strategy):
    """Walks the enumeration once; what is known already is passed over."""

    guided = False

    def __init__(self) -> None:
        self._position = 0
        self._walk: Iterator[Config] | None = None

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if self._walk is None:
            self._walk = itertools.islice(iter(state.space), self._position, None)
        fresh: list[Config] = []
        for config in self._walk if count else ():
            self._position += 1
            if state.is_new(config):
                fresh.append(config)
                if len(fresh) == count:
                    break
        return fresh

    def save(self) -> Json:
        return {"position": self._position}

    def load(self, saved: Json) -> None:
        self._position = int(saved["position"])
        self._walk = None
