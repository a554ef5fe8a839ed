"""Populations as integer arrays: sampling, mutation and crossover of thousands at once.

These are all the moves there are in a space: a search breeds 2,000 candidates a round, so they are
made in numpy; one configuration is a population of one. A population keeps, for each individual,
which subspace it is of and its row of value indices. Invariant: every row handed out is legal.

Kinship: which algorithms of a space are alike, and what a configuration of one is in another.

A template may spread one choice over subspaces (an engine, a number of copies: whatever decides
which knobs there are, or what limits them). For a search these are knobs like any other: two
subspaces are *near* when, of the values fixed in both, exactly one differs. An individual crosses
over by keeping every knob at its nearest allowed value; a knob it does not have is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.subspace import Rows, Subspace
from tilesmith.search_space.support.errors import ConfigError

_UNKNOWN = -1


@dataclass(frozen=True)
class _Source:
    """Where one knob's value comes from.

    Attributes:
        position: of the knob it is taken over from; None: it is the same for all individuals.
        table: its value index for each value index there (or the one), `_UNKNOWN`: any.
    """

    position: int | None
    table: NDArray[np.int64]


class Kinship:
    """The crossings between the subspaces of one space, each worked out when first asked for."""

    def __init__(self, subspaces: Sequence[Subspace]) -> None:
        self._subspaces = subspaces
        self._fixed = [dict(subspace.fixed) for subspace in subspaces]
        self.near = cache(self._near)
        self._sources = cache(self._all_sources)

    def names(self, kind: int) -> int:
        """Number of names by whose fixed value the subspaces near `kind` differ from it."""
        mine = self._fixed[kind]
        return len(
            {name for other in self.near(kind).tolist() for name in self._apart(mine, other)}
        )

    def moved(self, rows: Rows, kind: int, to: int, rng: np.random.Generator | None) -> Rows:
        """`rows` (n, knobs) of subspace `kind` in subspace `to`, limits not looked at.

        Args:
            rng: draws knobs that are not known; None: they take their first value.
        """
        radices = self._subspaces[to].radices
        columns = np.empty((len(rows), len(radices)), np.int64)
        for position, source in enumerate(self._sources(kind, to)):
            given = 0 if source.position is None else rows[:, source.position]
            column = np.broadcast_to(source.table[given], len(rows))
            if (column == _UNKNOWN).any():
                any_value = 0 if rng is None else rng.integers(0, radices[position], len(rows))
                column = np.where(column == _UNKNOWN, any_value, column)
            columns[:, position] = column
        return columns

    def _near(self, kind: int) -> NDArray[np.int64]:
        """Numbers of the subspaces near `kind`, ascending."""
        mine = self._fixed[kind]
        others = (i for i, s in enumerate(self._subspaces) if i != kind and s.size)
        return np.array([i for i in others if len(self._apart(mine, i)) == 1], np.int64)

    def _apart(self, mine: dict[str, KnobValue], other: int) -> list[str]:
        theirs = self._fixed[other]
        return [name for name, value in mine.items() if theirs.get(name, value) != value]

    def _all_sources(self, kind: int, to: int) -> list[_Source]:
        knobs = {knob.name: i for i, knob in enumerate(self._subspaces[kind].knobs)}
        sources = []
        for knob in self._subspaces[to].knobs:
            if (position := knobs.get(knob.name)) is not None:
                values = self._subspaces[kind].knobs[position].values
                table = np.array([_nearest(knob, value) for value in values], np.int64)
                sources.append(_Source(position, table))
            else:
                value = self._fixed[kind].get(knob.name)
                index = _UNKNOWN if value is None else _nearest(knob, value)
                sources.append(_Source(None, np.array([index], np.int64)))
        return sources


def _nearest(knob: Knob, value: KnobValue) -> int:
    """The index of a knob's value nearest in ratio, or equal; `_UNKNOWN` if there is none."""
    if value in knob.values:
        return knob.values.index(value)
    if not knob.ordered or not isinstance(value, int):
        return _UNKNOWN
    scale = np.log2(1.0 + np.abs(np.array([int(other) for other in knob.values], np.float64)))
    return int(np.argmin(np.abs(scale - np.log2(1.0 + abs(value)))))


_TRIES = 6
"""Attempts to make a legal child; after that the child is its parent."""


@dataclass(frozen=True)
class Population:
    """Individuals of one space.

    Attributes:
        kinds: subspace number of each, shape (n,).
        rows: value indices, shape (n, most knobs of any subspace), unused columns zero.
    """

    kinds: NDArray[np.int64]
    rows: Rows

    def __len__(self) -> int:
        return len(self.kinds)

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> "Population":
        return Population(self.kinds[chosen], self.rows[chosen])

    def replaced(
        self, chosen: NDArray[np.bool_], move: "Callable[[Population], Population]"
    ) -> "Population":
        """Return a population in which `move` was applied to the chosen individuals only."""
        moved = move(self.take(chosen))
        kinds, rows = self.kinds.copy(), self.rows.copy()
        kinds[chosen], rows[chosen] = moved.kinds, moved.rows
        return Population(kinds, rows)

    def joined(self, other: "Population") -> "Population":
        return Population(
            np.concatenate([self.kinds, other.kinds]), np.concatenate([self.rows, other.rows])
        )


class Breeder:
    """The moves of one space. Deterministic in the generator passed to each."""

    def __init__(self, subspaces: tuple[Subspace, ...]) -> None:
        self._subspaces = subspaces
        self._kinship = Kinship(subspaces)
        self._width = max((len(s.knobs) for s in subspaces), default=0)
        self._ordered = [np.array([k.ordered for k in s.knobs], bool) for s in subspaces]

    def empty(self) -> Population:
        return Population(np.zeros(0, np.int64), np.zeros((0, self._width), np.int64))

    def encode(self, configs: Sequence[Config]) -> Population:
        """Return individuals for the `configs` that are legal in this space, in their order."""
        kinds: list[int] = []
        rows = []
        for config in configs:
            kind = next((i for i, s in enumerate(self._subspaces) if s.holds(config)), None)
            if kind is None:
                continue
            try:
                row = self._subspaces[kind].row(config)
            except ConfigError:
                continue
            if self._subspaces[kind].legal(row)[0]:
                kinds.append(kind)
                rows.append(self._pad(row)[0])
        if not kinds:
            return self.empty()
        return Population(np.array(kinds, np.int64), np.stack(rows))

    def decode(self, population: Population) -> list[Config]:
        """The configurations of a population, in order."""
        pairs = zip(population.kinds.tolist(), population.rows.tolist(), strict=True)
        return [self._subspaces[kind].config(row) for kind, row in pairs]

    def sample(self, rng: np.random.Generator, count: int, balanced: bool = False) -> Population:
        """`count` legal individuals: uniform over the space, or, `balanced`, over its subspaces.

        Raises:
            ConfigError: no configuration satisfies the limits.
        """
        weights = np.array([s.size for s in self._subspaces], dtype=np.float64)
        if not weights.sum():
            raise ConfigError("the search space is empty: no configuration satisfies its limits")
        if balanced:
            weights = (weights > 0).astype(np.float64)
        shares = rng.multinomial(count, weights / weights.sum())
        drawn = self.empty()
        for kind, share in enumerate(shares.tolist()):
            rows = self._pad(self._subspaces[kind].draw(rng, share))
            drawn = drawn.joined(Population(np.full(share, kind, np.int64), rows))
        return drawn.take(rng.permutation(len(drawn)))

    def mutate(self, parents: Population, rng: np.random.Generator) -> Population:
        """One child each: one knob changed (now and then more), ordered knobs mostly by a step.

        A value by which near subspaces differ is changed as often as a knob.
        """
        kinds, rows = parents.kinds.copy(), parents.rows.copy()
        for kind in np.unique(parents.kinds).tolist():
            subspace = self._subspaces[kind]
            mine = np.flatnonzero(parents.kinds == kind)
            names, movable = self._kinship.names(kind), int((subspace.radices > 1).sum())
            if names:
                leaving = rng.random(len(mine)) * (names + movable) < names
                self._emigrate(kinds, rows, mine[leaving], kind, rng)
                mine = mine[~leaving]
            waiting = mine
            for _ in range(_TRIES if movable else 0):
                if not len(waiting):
                    break
                moved = self._moved(kind, parents.rows[waiting], rng)
                legal = subspace.legal(moved[:, : len(subspace.knobs)])
                legal &= (moved != parents.rows[waiting]).any(axis=1)
                rows[waiting[legal]] = moved[legal]
                waiting = waiting[~legal]
        return Population(kinds, rows)

    def _emigrate(
        self,
        kinds: NDArray[np.int64],
        rows: Rows,
        waiting: NDArray[np.int64],
        kind: int,
        rng: np.random.Generator,
    ) -> None:
        """Move individuals of `kind` into near subspaces, in place; what none takes stays."""
        for _ in range(_TRIES):
            if not len(waiting):
                break
            goals = rng.choice(self._kinship.near(kind), len(waiting))
            stayed = []
            for goal in np.unique(goals).tolist():
                here = waiting[goals == goal]
                moved, legal = self._into(goal, kind, rows[here], rng)
                kinds[here[legal]], rows[here[legal]] = goal, moved[legal]
                stayed.append(here[~legal])
            waiting = np.concatenate(stayed)

    def _into(
        self, goal: int, kind: int, rows: Rows, rng: np.random.Generator | None
    ) -> tuple[Rows, NDArray[np.bool_]]:
        """Rows of subspace `kind` in subspace `goal`, and which of them are legal there."""
        moved = self._kinship.moved(rows, kind, goal, rng)
        return self._pad(moved), self._subspaces[goal].legal(moved)

    def neighbours(self, parents: Population) -> Population:
        """Every legal individual that differs from a parent in exactly one knob, and the parent in
        every near subspace; parent by parent.

        Some may come twice where parents are alike.
        """
        populations = [self.empty()]
        for kind, row in zip(parents.kinds.tolist(), parents.rows, strict=True):
            radices = self._subspaces[kind].radices
            changed = [
                (position, value)
                for position, radix in enumerate(radices.tolist())
                for value in range(radix)
                if value != row[position]
            ]
            rows = np.repeat(row[None], len(changed), axis=0)
            for number, (position, value) in enumerate(changed):
                rows[number, position] = value
            rows = rows[self._subspaces[kind].legal(rows[:, : len(radices)])]
            populations.append(Population(np.full(len(rows), kind, np.int64), rows))
            for goal in self._kinship.near(kind).tolist():
                moved, legal = self._into(goal, kind, row[None], None)
                populations.append(Population(np.full(1, goal), moved).take(legal))
        return Population(
            np.concatenate([p.kinds for p in populations]),
            np.concatenate([p.rows for p in populations]),
        )

    def cross(self, first: Population, second: Population, rng: np.random.Generator) -> Population:
        """One child a pair, of `first`'s algorithm, each knob from either parent."""
        rows, others = first.rows.copy(), second.rows.copy()
        apart = first.kinds != second.kinds
        pairs = zip(second.kinds[apart].tolist(), first.kinds[apart].tolist(), strict=True)
        for kind, goal in sorted(set(pairs)):
            here = np.flatnonzero((second.kinds == kind) & (first.kinds == goal))
            others[here] = self._pad(self._kinship.moved(others[here], kind, goal, rng))
        waiting = np.arange(len(first))
        for _ in range(_TRIES):
            if not len(waiting):
                break
            coin = rng.random((len(waiting), self._width)) < 0.5
            child = np.where(coin, first.rows[waiting], others[waiting])
            legal = self._legal(first.kinds[waiting], child)
            rows[waiting[legal]] = child[legal]
            waiting = waiting[~legal]
        return Population(first.kinds.copy(), rows)

    def structures(self, population: Population) -> NDArray[np.int64]:
        """Number of each individual's structure (its unordered knobs), by first appearance."""
        rows = np.zeros((len(population), self._width + 1), np.int64)
        rows[:, 0] = population.kinds
        for kind, ordered in enumerate(self._ordered):
            mine = np.flatnonzero(population.kinds == kind)
            free = np.flatnonzero(~ordered)
            rows[np.ix_(mine, free + 1)] = population.rows[np.ix_(mine, free)]
        _, first, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[numbers.ravel()]

    def _moved(self, kind: int, rows: Rows, rng: np.random.Generator) -> Rows:
        subspace = self._subspaces[kind]
        radices = subspace.radices
        movable = np.flatnonzero(radices > 1)
        moved = rows.copy()
        changes = np.where(rng.random(len(rows)) < 0.3, 2, 1)
        for change in range(2):
            active = np.flatnonzero(changes > change)
            position = movable[rng.integers(0, len(movable), len(active))]
            old, limit = moved[active, position], radices[position]
            jump = (old + 1 + (rng.random(len(active)) * (limit - 1)).astype(np.int64)) % limit
            step = old + np.where(rng.random(len(active)) < 0.5, 1, -1)
            step = np.where(step < 0, 1, np.where(step >= limit, limit - 2, step))
            near = self._ordered[kind][position] & (rng.random(len(active)) < 0.7)
            moved[active, position] = np.where(near, step, jump)
        return moved

    def _legal(self, kinds: NDArray[np.int64], rows: Rows) -> NDArray[np.bool_]:
        mask = np.zeros(len(kinds), np.bool_)
        for kind, subspace in enumerate(self._subspaces):
            mine = np.flatnonzero(kinds == kind)
            if len(mine):
                mask[mine] = subspace.legal(rows[mine, : len(subspace.knobs)])
        return mask

    def _pad(self, rows: Rows) -> Rows:
        padded = np.zeros((len(rows), self._width), np.int64)
        padded[:, : rows.shape[1]] = rows
        return padded
