"""`Subspace`: the legal configurations of one algorithm, a product of knobs cut by constraints.

A configuration is `Subspace.fixed` plus one value for each knob. Internally it is a row of value
indices, so that thousands are drawn and checked as one numpy array.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Constraint, Knob
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.support.suggestions import did_you_mean

Rows = NDArray[np.int64]
"""Value indices, shape (configurations, knobs)."""

CHUNK = 1 << 16
"""Rows enumerated at a time."""
GRID = 1 << 18
"""Combinations of numbers judged at a time, where only their number is asked."""
MOST_DRAWN = 1 << 18
"""Rows drawn in vain after each other before a subspace counts as one that has no legal one."""
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
        return self.cardinality // inner.cardinality * inner._counted()

    def _counted(self) -> int:
        """Legal configurations of knobs that are all numbers: a grid at a time.

        A grid is the product of the last knobs, an axis each, for one choice of those before. A
        knob that a constraint does not mention is an axis of 1 to it, so that it is evaluated no
        more often than it has values.
        """
        outer = len(self.knobs)
        while outer and math.prod(self.radices[outer - 1 :].tolist()) <= GRID:
            outer -= 1
        axes = len(self.knobs) - outer
        values: dict[str, Any] = {n: value for n, value in self.fixed if isinstance(value, int)}
        for axis, knob in enumerate(self.knobs[outer:]):
            shape = [-1 if axis == other else 1 for other in range(axes)]
            values[knob.name] = np.array(knob.values, dtype=np.int64).reshape(shape)
        total, points = 0, math.prod(self.radices[outer:].tolist())
        for chosen in itertools.product(*(knob.values for knob in self.knobs[:outer])):
            values.update(zip((knob.name for knob in self.knobs), chosen, strict=False))
            mask = np.ones((1,) * axes, dtype=np.bool_)
            for constraint in self.constraints:
                mask = mask & (constraint.value.evaluate(values) <= constraint.limit)
            total += int(np.count_nonzero(mask)) * (points // mask.size)
        return total

    @cached_property
    def empty(self) -> bool:
        """Whether no configuration is legal; the first that is ends the enumeration."""
        inner, start, count = self._bound, 0, 256
        while start < inner.cardinality:
            if inner.satisfied(inner.rows(start, start + count)).any():
                return False
            start, count = start + count, min(16 * count, CHUNK)
        return True

    @cached_property
    def _bound(self) -> "Subspace":
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

    def check(self, config: Config) -> None:
        """Raise `ConfigError` naming the knob or the limit that a configuration breaks."""
        tiles = self.tiles(self.row(config))
        for constraint in self.constraints:
            value = int(np.max(constraint.value.evaluate(tiles)))
            if value > constraint.limit:
                raise ConfigError(constraint.explain(value))

    def listing(self) -> Iterator[Rows]:
        """All legal rows, in a fixed order, a chunk at a time."""
        for start in range(0, self.cardinality, CHUNK):
            rows = self.rows(start, start + CHUNK)
            yield rows[self.legal(rows)]

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        """`count` legal rows, uniform, with replacement.

        Raises:
            ConfigError: `MOST_DRAWN` rows after each other are not legal.
        """
        kept = [np.zeros((0, len(self.knobs)), np.int64)]
        missing, in_vain = count, 0
        while missing > 0:
            drawn = rng.integers(0, self.radices, size=(2 * missing + 8, len(self.knobs)))
            legal = drawn[self.legal(drawn)][:missing]
            in_vain = 0 if len(legal) else in_vain + len(drawn)
            if in_vain > MOST_DRAWN:
                limits = " and ".join(f"{c.meaning} <= {c.limit}" for c in self.constraints)
                raise ConfigError(
                    f"none of {in_vain} configurations drawn from {self.cardinality} is legal: "
                    f"{limits}; give the knobs values that keep these limits"
                )
            kept.append(legal)
            missing -= len(legal)
        return np.concatenate(kept)

    def config(self, row: Sequence[int] | NDArray[np.int64]) -> Config:
        """The configuration of one row (its columns beyond the knobs are not looked at)."""
        return Config(
            tuple(pairs[0 if place is None else row[place]] for place, pairs in self._items)
        )

    @cached_property
    def _items(self) -> tuple[tuple[int | None, tuple[tuple[str, KnobValue], ...]], ...]:
        """In the order of names, the position of a knob (None: fixed) and its (name, value)s."""
        fixed = {name: (None, ((name, value),)) for name, value in self.fixed}
        free = {
            knob.name: (position, tuple((knob.name, value) for value in knob.values))
            for position, knob in enumerate(self.knobs)
        }
        return tuple(pair for _, pair in sorted({**fixed, **free}.items()))

    def row(self, config: Config) -> Rows:
        """The row of a configuration, shape (1, knobs); `ConfigError` names what does not fit."""
        expected = {name for name, _ in self.fixed} | {knob.name for knob in self.knobs}
        if extra := set(config) ^ expected:
            strange = sorted(extra - expected)
            meant = did_you_mean(strange[0], expected) if strange else ""
            raise ConfigError(
                f"configuration has unexpected or missing knobs: {', '.join(sorted(extra))}{meant}"
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
