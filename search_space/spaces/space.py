"""`SearchSpace`: every legal configuration of a workload on a target.

A space is a union of *subspaces*: one for each algorithm of a template, with knobs of its own (the
tiles of a Winograd convolution mean nothing to a direct one). It knows its size, enumerates,
samples uniformly and validates; a search moves in it through `SearchSpace.breeder`. Randomness
comes only through the generator passed in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.population import Breeder
from tilesmith.search_space.spaces.subspace import Subspace
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.support.suggestions import instead

__all__ = ["SearchSpace", "Subspace"]

_TOLD = 8
"""Algorithms that a message names."""


@dataclass(frozen=True)
class SearchSpace:
    """A union of disjoint subspaces. See the module's docstring."""

    subspaces: tuple[Subspace, ...]

    @cached_property
    def size(self) -> int:
        """Number of legal configurations."""
        return sum(subspace.size for subspace in self.subspaces)

    @property
    def empty(self) -> bool:
        """Whether no configuration is legal: even the smallest tiles are too large."""
        return all(subspace.empty for subspace in self.subspaces)

    @cached_property
    def breeder(self) -> Breeder:
        """The moves of a search in this space: encode, sample, mutate, cross, neighbours."""
        return Breeder(self.subspaces)

    @cached_property
    def structural_knobs(self) -> frozenset[str]:
        """Names whose values select the structure of the program, fixed values included."""
        names = {knob.name for s in self.subspaces for knob in s.knobs if knob.structural}
        return frozenset(names | {name for s in self.subspaces for name, _ in s.fixed})

    @cached_property
    def setting_knobs(self) -> tuple[str, ...]:
        """Names whose values are settings of a schedule wherever they occur, in order."""
        knobs = [knob for s in self.subspaces for knob in s.knobs]
        others = {name for s in self.subspaces for name, _ in s.fixed}
        others |= {knob.name for knob in knobs if not knob.setting}
        return tuple(sorted({knob.name for knob in knobs} - others))

    def structure(self, config: Config) -> Config:
        """The structural part of a configuration: equal parts share one lowered program."""
        return Config.of({n: v for n, v in config.items() if n in self.structural_knobs})

    def tiles(self, config: Config) -> dict[str, int]:
        """The tile sizes of a configuration, by symbol."""
        return {name: config.integer(name) for name in config if name not in self.structural_knobs}

    def subspace_of(self, config: Config) -> Subspace:
        """The subspace whose fixed values `config` has; `ConfigError` if none."""
        for subspace in self.subspaces:
            if subspace.holds(config):
                return subspace
        raise ConfigError(self._strange(config))

    def _strange(self, config: Config) -> str:
        """What keeps a configuration out of every subspace: a name, a value, or how they meet."""
        names = {k.name for s in self.subspaces for k in s.knobs}
        names |= {name for s in self.subspaces for name, _ in s.fixed}
        for name in config:
            if name not in names:
                like = instead(name, sorted(names), "it has")
                return f"configuration '{config}': knob '{name}' is not of this space{like}"
        values: dict[str, dict[KnobValue, None]] = {}
        for name, value in (pair for s in self.subspaces for pair in s.fixed):
            values.setdefault(name, {})[value] = None
        for name, allowed in values.items():
            if name in config and config[name] not in allowed and not self._free(name):
                words = ", ".join(map(str, allowed))
                return (
                    f"configuration '{config}' is of no algorithm of this space: knob '{name}' "
                    f"cannot be {config[name]!r}; allowed: {words}"
                )
        subspaces = [" ".join(f"{n}={v}" for n, v in s.fixed) for s in self.subspaces]
        more = f"; and {len(subspaces) - _TOLD} more" if len(subspaces) > _TOLD else ""
        return (
            f"configuration '{config}' is of no algorithm of this space "
            f"({'; '.join(subspaces[:_TOLD])}{more})"
        )

    def _free(self, name: str) -> bool:
        """Whether a knob that some subspaces fix is one to choose in others."""
        return any(knob.name == name for s in self.subspaces for knob in s.knobs)

    def validate(self, config: Config) -> None:
        """Raise `ConfigError` naming the knob or the limit that `config` breaks."""
        self.subspace_of(config).check(config)

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Config):
            return False
        try:
            self.validate(config)
        except ConfigError:
            return False
        return True

    def __iter__(self) -> Iterator[Config]:
        """All legal configurations, in a fixed order."""
        for subspace in self.subspaces:
            for rows in subspace.listing():
                yield from map(subspace.config, rows)

    def sample(self, rng: np.random.Generator, count: int = 1) -> list[Config]:
        """`count` legal configurations, uniform over the space, drawn with replacement.

        Raises:
            ConfigError: no configuration satisfies the limits.
        """
        return self.breeder.decode(self.breeder.sample(rng, count))

    def describe(self) -> Mapping[str, tuple[KnobValue, ...]]:
        """Every knob with its values, for people."""
        values_of: dict[str, tuple[KnobValue, ...]] = {}
        for subspace in self.subspaces:
            for name, value in subspace.fixed:
                values_of[name] = (*values_of.get(name, ()), value)
            for knob in subspace.knobs:
                values_of[knob.name] = tuple(
                    dict.fromkeys((*values_of.get(knob.name, ()), *knob.values))
                )
        return values_of
