"""`SearchSpace`: every legal configuration of a workload on a target.

A space is a union of *subspaces*: one for each algorithm of a template, with knobs of its own (the
tiles of a Winograd convolution mean nothing to a direct one). It knows its size, enumerates,
samples uniformly, mutates, crosses and validates; randomness comes only through the generator
passed in.

A configuration is `subspace.fixed` plus one value for each knob. Internally it is a row of value
indices, so that thousands are drawn and checked as one numpy array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.errors import ConfigError
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Constraint, Knob

if TYPE_CHECKING:
    from tilesmith.search_space.spaces.kinship import Kinship

Rows = NDArray[np.int64]
"""Value indices, shape (configurations, knobs)."""

_CHUNK = 1 << 16
_TABULATED = 1 << 16
"""Combinations of constrained knobs whose legality is kept."""


@dataclass(frozen=True)
class Subspace:
    """The configurations of one algorithm: a product of knobs cut by constraints.

    Attributes:
        fixed: knob values every configuration here shares (at least what tells it from the others).
        knobs: free choices, in the order a reader should see them.
        constraints: limits over knobs that are numbers (and integer `fixed` values).
    """

    fixed: tuple[tuple[str, KnobValue], ...]
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def radices(self) -> NDArray[np.int64]:
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @property
    def cardinality(self) -> int:
        """Configurations before constraints."""
        product = 1
        for knob in self.knobs:
            product *= len(knob.values)
        return product

    @cached_property
    def size(self) -> int:
        """Legal configurations, exactly: constrained knobs enumerated, others multiplied."""
        inner = self._bound
        chunks = range(0, inner.cardinality, _CHUNK)
        legal = sum(int(inner.satisfied(inner.rows(i, i + _CHUNK)).sum()) for i in chunks)
        return self.cardinality // inner.cardinality * legal

    @cached_property
    def _bound(self) -> Subspace:
        """The same with only those knobs that constraints mention."""
        used = frozenset().union(*(c.value.variables() for c in self.constraints), frozenset())
        bound = tuple(knob for knob in self.knobs if knob.name in used)
        return Subspace(self.fixed, bound, self.constraints)

    @cached_property
    def _verdicts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]] | None:
        """Which combinations of the constrained knobs are legal: these knobs' positions, what each
        counts for in the combination's number, and the verdicts; None where there are too many.
        """
        inner = self._bound
        if inner.cardinality > _TABULATED:
            return None
        names = {knob.name for knob in inner.knobs}
        positions = np.array([i for i, k in enumerate(self.knobs) if k.name in names], np.int64)
        strides = np.cumprod([1, *inner.radices[:0:-1].tolist()])[::-1].astype(np.int64)
        return positions, strides[: len(positions)], inner.satisfied(inner.rows(0, _TABULATED))

    def rows(self, start: int, stop: int) -> Rows:
        """Rows number `start` to `stop` of the full product, in mixed-radix order."""
        numbers = np.arange(start, min(stop, self.cardinality), dtype=np.int64)
        columns = np.empty((len(numbers), len(self.knobs)), dtype=np.int64)
        for position in range(len(self.knobs) - 1, -1, -1):
            numbers, columns[:, position] = np.divmod(numbers, self.radices[position])
        return columns

    def tiles(self, rows: Rows) -> dict[str, NDArray[np.int64]]:
        """A batch's environment: numbers by knob name, and integer `fixed` values."""
        values: dict[str, NDArray[np.int64]] = {
            knob.name: np.array(knob.values, dtype=np.int64)[rows[:, position]]
            for position, knob in enumerate(self.knobs)
            if knob.ordered
        }
        for name, value in self.fixed:
            if isinstance(value, int):
                values[name] = np.full(len(rows), value, dtype=np.int64)
        return values

    def legal(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows satisfy every constraint: looked up where there are few combinations."""
        if (table := self._verdicts) is None:
            return self.satisfied(rows)
        positions, strides, verdicts = table
        return np.asarray(verdicts[rows[:, positions] @ strides])

    def satisfied(self, rows: Rows) -> NDArray[np.bool_]:
        """As `legal`, by evaluating the constraints."""
        mask = np.ones(len(rows), dtype=np.bool_)
        tiles = self.tiles(rows)
        for constraint in self.constraints:
            mask &= np.broadcast_to(
                constraint.value.evaluate(tiles) <= constraint.limit, mask.shape
            )
        return mask

    def config(self, row: Sequence[int] | NDArray[np.int64]) -> Config:
        """The configuration of one row."""
        chosen = {k.name: k.values[int(i)] for k, i in zip(self.knobs, row, strict=True)}
        return Config.of({**dict(self.fixed), **chosen})

    def row(self, config: Config) -> Rows:
        """The row of a configuration, shape (1, knobs); `ConfigError` names what does not fit."""
        expected = {name for name, _ in self.fixed} | {knob.name for knob in self.knobs}
        if extra := set(config) ^ expected:
            raise ConfigError(
                f"configuration has unexpected or missing knobs: {', '.join(sorted(extra))}"
            )
        indices = []
        for knob in self.knobs:
            if config[knob.name] not in knob.values:
                allowed = ", ".join(map(str, knob.values))
                raise ConfigError(
                    f"knob '{knob.name}' cannot be {config[knob.name]!r}; allowed: {allowed}"
                )
            indices.append(knob.values.index(config[knob.name]))
        return np.array([indices], dtype=np.int64).reshape(1, len(self.knobs))

    def holds(self, config: Config) -> bool:
        """Whether the fixed values are this subspace's."""
        return all(config.get(name) == value for name, value in self.fixed)


@dataclass(frozen=True)
class SearchSpace:
    """A union of disjoint subspaces. See the module's docstring."""

    subspaces: tuple[Subspace, ...]

    @cached_property
    def size(self) -> int:
        """Number of legal configurations."""
        return sum(subspace.size for subspace in self.subspaces)

    @cached_property
    def kinship(self) -> Kinship:
        """Crossings between the subspaces."""
        from tilesmith.search_space.spaces.kinship import Kinship

        return Kinship(self.subspaces)

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
        known = "; ".join(" ".join(f"{n}={v}" for n, v in s.fixed) for s in self.subspaces)
        raise ConfigError(f"configuration '{config}' is of no algorithm of this space ({known})")

    def validate(self, config: Config) -> None:
        """Raise `ConfigError` naming the knob or the limit that `config` breaks."""
        subspace = self.subspace_of(config)
        tiles = subspace.tiles(subspace.row(config))
        for constraint in subspace.constraints:
            found = int(np.max(constraint.value.evaluate(tiles)))
            if found > constraint.limit:
                raise ConfigError(constraint.explain(found))

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
            for start in range(0, subspace.cardinality, _CHUNK):
                rows = subspace.rows(start, start + _CHUNK)
                for row in rows[subspace.legal(rows)]:
                    yield subspace.config(row)

    def sample(self, rng: np.random.Generator, count: int = 1) -> list[Config]:
        """`count` legal configurations, uniform over the space, drawn with replacement."""
        weights = np.array([s.size for s in self.subspaces], dtype=np.float64)
        if not weights.sum():
            raise ConfigError("the search space is empty: no configuration satisfies its limits")
        shares = rng.multinomial(count, weights / weights.sum())
        drawn = [
            subspace.config(row)
            for subspace, share in zip(self.subspaces, shares, strict=True)
            for row in _sample_rows(subspace, rng, int(share))
        ]
        return [drawn[i] for i in rng.permutation(len(drawn))]

    def mutate(self, config: Config, rng: np.random.Generator, tries: int = 32) -> Config:
        """A legal neighbour: one knob changed (ordered knobs mostly by one step).

        Now and then it changes two. Returns `config` itself when `tries` attempts found none.
        """
        subspace = self.subspace_of(config)
        original = subspace.row(config)
        movable = np.flatnonzero(subspace.radices > 1)
        for _ in range(tries if len(movable) else 0):
            row = original.copy()
            changes = 2 if len(movable) > 1 and rng.random() < 0.3 else 1
            for position in rng.choice(movable, size=changes, replace=False):
                row[0, position] = _step(subspace, int(position), int(row[0, position]), rng)
            if subspace.legal(row)[0]:
                return subspace.config(row[0])
        return config

    def cross(
        self, first: Config, second: Config, rng: np.random.Generator, tries: int = 8
    ) -> Config:
        """A legal child taking each knob from either parent; `first` if the algorithms differ."""
        subspace = self.subspace_of(first)
        if not subspace.holds(second):
            return first
        one, two = subspace.row(first), subspace.row(second)
        for _ in range(tries):
            child = np.where(rng.random(one.shape) < 0.5, one, two)
            if subspace.legal(child)[0]:
                return subspace.config(child[0])
        return first

    def describe(self) -> Mapping[str, tuple[KnobValue, ...]]:
        """Every knob with its values, for people."""
        found: dict[str, tuple[KnobValue, ...]] = {}
        for subspace in self.subspaces:
            for name, value in subspace.fixed:
                found[name] = (*found.get(name, ()), value)
            for knob in subspace.knobs:
                found[knob.name] = tuple(dict.fromkeys((*found.get(knob.name, ()), *knob.values)))
        return found


def _sample_rows(subspace: Subspace, rng: np.random.Generator, count: int) -> Rows:
    """`count` legal rows by rejection, uniform."""
    kept: list[Rows] = []
    missing = count
    while missing > 0:
        columns = rng.integers(0, subspace.radices, size=(2 * missing + 8, len(subspace.knobs)))
        columns = columns[subspace.legal(columns)][:missing]
        kept.append(columns)
        missing -= len(columns)
    return np.concatenate(kept) if kept else np.empty((0, len(subspace.knobs)), dtype=np.int64)


def _step(subspace: Subspace, position: int, index: int, rng: np.random.Generator) -> int:
    """Another value index for one knob."""
    knob = subspace.knobs[position]
    if knob.ordered and rng.random() < 0.7:
        neighbours = [i for i in (index - 1, index + 1) if 0 <= i < len(knob.values)]
        return int(rng.choice(neighbours))
    shift = int(rng.integers(1, len(knob.values)))
    return (index + shift) % len(knob.values)
