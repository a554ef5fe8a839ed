"""`Config`: one point of a search space, as plain, JSON-able knob values.

A config is what the tuner samples, mutates and crosses, and what the database stores. Invariants:
immutable, hashable, ordered by knob name, so that equal configs have equal `key`s.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.support.errors import ConfigError

KnobValue = int | str


@dataclass(frozen=True)
class Config(Mapping[str, KnobValue]):
    """Knob values by name: a read-only mapping.

    >>> Config.of(m_tile=6, order="mn").key
    '{"m_tile":6,"order":"mn"}'
    """

    items_: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, values: Mapping[str, KnobValue] | None = None, /, **more: KnobValue) -> "Config":
        merged = {**(values or {}), **more}
        return cls(tuple(sorted(merged.items())))

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """Parse what `key` printed; raise `ConfigError` on anything else."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"a configuration is a JSON object, not {text[:60]!r}") from error
        if not isinstance(values, dict) or not all(
            isinstance(value, int | str) for value in values.values()
        ):
            raise ConfigError(
                f"a configuration maps knob names to integers or strings: {text[:60]!r}"
            )
        return cls.of(values)

    @property
    def key(self) -> str:
        """Canonical text: compact JSON with sorted keys."""
        return json.dumps(dict(self.items_), separators=(",", ":"))

    def integer(self, name: str) -> int:
        """The value of an integer knob."""
        value = self[name]
        if not isinstance(value, int):
            raise ConfigError(f"knob '{name}' is an integer, not {value!r}")
        return value

    def text(self, name: str) -> str:
        """The value of a choice, order or layout knob."""
        value = self[name]
        if not isinstance(value, str):
            raise ConfigError(f"knob '{name}' is a name, not {value!r}")
        return value

    @cached_property
    def hash_(self) -> int:
        return hash(self.items_)

    def __hash__(self) -> int:
        """Kept: a search asks for each configuration's many times."""
        return self.hash_

    def __reduce__(self) -> "tuple[type[Config], tuple[object]]":
        """Without the hash, which another process has otherwise."""
        return Config, (self.items_,)

    def __getitem__(self, name: str) -> KnobValue:
        for known, value in self.items_:
            if known == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items_)
