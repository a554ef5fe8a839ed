"""Kinship: which algorithms of a space are alike, and what a configuration of one is in another.

A template may spread one choice over subspaces (an engine, a number of copies: whatever decides
which knobs there are, or what limits them). For a search these are knobs like any other: two
subspaces are *near* when, of the values fixed in both, exactly one differs. An individual crosses
over by keeping every knob at its nearest allowed value; a knob it does not have is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.subspace import Rows, Subspace

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
