"""Knobs as numbers: what tells configurations apart, whatever they come to.

Columns belong to names: a name has the same columns in every algorithm that has it, be its value
fixed there or a knob. Its integers give one column, the base-2 logarithm of the value (plus one),
each of its texts one more. What a configuration does not have is -1 (or 0); names and texts that
the columns do not know are passed over.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace

_ABSENT = -1.0
_UNMET = (-1, 0.0)

_Cell = tuple[int, float]
"""A column and its value."""


@dataclass(frozen=True)
class KnobColumns:
    """Columns by name.

    Attributes:
        parts: for each name whether it has a column of integers, and its texts.
    """

    parts: Mapping[str, tuple[bool, tuple[str, ...]]]

    @classmethod
    def of(cls, space: SearchSpace) -> "KnobColumns":
        """The columns of one space, names that have only one value left out."""
        values = {name: set(levels) for name, levels in space.describe().items()}
        for subspace in space.subspaces:
            here = {name for name, _ in subspace.fixed} | {knob.name for knob in subspace.knobs}
            for name in values.keys() - here:
                values[name].add("")  # absent: a value like any other
        return cls(
            {
                name: _part(levels - {""})
                for name, levels in sorted(values.items())
                if len(levels) > 1
            }
        )

    @classmethod
    def met(cls, configs: Iterable[Config]) -> "KnobColumns":
        """Return columns for all knobs and values of these configurations, of any spaces."""
        values: dict[str, set[KnobValue]] = {}
        for config in configs:
            for name, value in config.items_:
                values.setdefault(name, set()).add(value)
        return cls({name: _part(levels) for name, levels in sorted(values.items())})

    def rows(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """The columns of configurations, shape (n, width)."""
        start, known = self._layout[0], self._cells
        places: list[int] = []
        values: list[float] = []
        for number, config in enumerate(configs):
            first = number * len(start)
            for item in config.items_:
                if (cell := known.get(item, _UNMET)) is _UNMET:
                    cell = known[item] = self._cell(item)
                if cell is not None:
                    places.append(first + cell[0])
                    values.append(cell[1])
        table = np.tile(start, len(configs))
        table[places] = values
        return table.reshape(len(configs), len(start))

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self._layout[0])

    def to_json(self) -> str:
        return json.dumps(self.parts)

    @classmethod
    def from_json(cls, text: str) -> "KnobColumns":
        """Undo `to_json`; `ValueError` for other text."""
        try:
            parts = {n: (bool(i), tuple(texts)) for n, (i, texts) in json.loads(text).items()}
        except (AttributeError, TypeError) as error:
            raise ValueError(f"not knob columns: {text[:40]!r}") from error
        return cls(parts)

    @cached_property
    def _cells(self) -> dict[tuple[str, KnobValue], _Cell | None]:
        """Columns and values of names with values met before: the same few come again."""
        return {}

    def _cell(self, item: tuple[str, KnobValue]) -> _Cell | None:
        _, places, numbers = self._layout
        if (place := places.get(item)) is not None:
            return place, 1.0
        name, value = item
        if (place := numbers.get(name)) is not None and isinstance(value, int):
            return place, float(np.log2(1.0 + abs(value)))
        return None

    @cached_property
    def _layout(
        self,
    ) -> tuple[NDArray[np.float32], dict[tuple[str, KnobValue], int], dict[str, int]]:
        """A row of nothing; columns of texts by name and text; columns of integers by name."""
        start: list[float] = []
        places: dict[tuple[str, KnobValue], int] = {}
        numbers: dict[str, int] = {}
        for name, (integers, texts) in self.parts.items():
            if integers:
                numbers[name] = len(start)
                start.append(_ABSENT)
            for text in texts:
                places[name, text] = len(start)
                start.append(0.0)
        return np.array(start, np.float32), places, numbers


_MOST_HALVINGS = 7
"""128 elements, or bytes: nothing of a machine cares for more."""


@dataclass(frozen=True)
class Divisibility:
    """How often two divides the values of knobs, a column for each knob of which its logarithm does
    not tell.

    Attributes:
        cells: by name of the knob, its column and the number for each of its values.
    """

    cells: Mapping[str, tuple[int, Mapping[KnobValue, float]]]

    @classmethod
    def of(cls, space: SearchSpace) -> "Divisibility":
        cells: dict[str, tuple[int, Mapping[KnobValue, float]]] = {}
        for name, values in space.describe().items():
            numbers = [value for value in values if isinstance(value, int)]
            if len(numbers) > 2 and any(number & (number - 1) for number in numbers):
                cells[name] = len(cells), {number: _halvings(number) for number in numbers}
        return cls(cells)

    def rows(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """The columns of configurations, shape (n, width); -1 where a knob is absent."""
        table = np.full((len(configs), len(self.cells)), _ABSENT, np.float32)
        for place, config in enumerate(configs):
            for name, value in config.items_:
                if (cell := self.cells.get(name)) is not None and value in cell[1]:
                    table[place, cell[0]] = cell[1][value]
        return table


@dataclass(frozen=True)
class BareKnobs:
    """All that numbers say of knobs by themselves: their columns and their divisibility."""

    columns: KnobColumns
    divisibility: Divisibility

    @classmethod
    def of(cls, space: SearchSpace) -> "BareKnobs":
        return cls(KnobColumns.of(space), Divisibility.of(space))

    def rows(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """Shape (n, width)."""
        return np.concatenate([self.columns.rows(configs), self.divisibility.rows(configs)], axis=1)


def _halvings(number: int) -> float:
    """How often two divides a number; zero, which it divides for ever, counts as odd."""
    return float(min((number & -number).bit_length() - 1, _MOST_HALVINGS)) if number else 0.0


def _part(values: set[KnobValue]) -> tuple[bool, tuple[str, ...]]:
    texts = sorted(value for value in values if isinstance(value, str))
    return any(isinstance(value, int) for value in values), tuple(texts)
