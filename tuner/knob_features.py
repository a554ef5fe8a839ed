"""Knobs as numbers: what tells the configurations of one space apart, whatever they come to.

Columns mean the same across a whole space: a name has the same columns in every algorithm that has
it, be its value fixed there or a knob. Names whose values are all integers give one column, the
base-2 logarithm of the value (plus one), others one column for each value. What an algorithm does
not have is -1 (or 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_space.config import Config, KnobValue
from search_space.space import SearchSpace

_ABSENT = -1.0


@dataclass(frozen=True)
class KnobColumns:
    """The columns of one space.

    Attributes:
        parts: by name, where its columns start and what each value writes there: one number, or
            the number of the column that is 1.
        width: number of columns.
        start: a row of a configuration without any of the names, shape (width,).
    """

    parts: dict[str, tuple[int, dict[KnobValue, float] | None, dict[KnobValue, int]]]
    width: int
    start: NDArray[np.float32]

    @classmethod
    def of(cls, space: SearchSpace) -> KnobColumns:
        parts: dict[str, tuple[int, dict[KnobValue, float] | None, dict[KnobValue, int]]] = {}
        start: list[float] = []
        for name, values in sorted(space.describe().items()):
            known = tuple(dict.fromkeys(values))
            everywhere = all(
                name in dict(s.fixed) or any(k.name == name for k in s.knobs)
                for s in space.subspaces
            )
            if len(known) + (not everywhere) < 2:
                continue
            if all(isinstance(value, int) for value in known):
                numbers = {v: float(np.log2(1.0 + abs(int(v)))) for v in known}
                parts[name] = len(start), numbers, {}
                start.append(_ABSENT)
            else:
                columns = {value: number for number, value in enumerate(known)}
                parts[name] = len(start), None, columns
                start += [0.0] * len(known)
        return cls(parts, len(start), np.array(start, np.float32))

    def rows(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """The columns of configurations of this space, shape (n, width)."""
        found = np.tile(self.start, (len(configs), 1))
        for row, config in zip(found, configs, strict=True):
            for name, value in config.items_:
                if (part := self.parts.get(name)) is None:
                    continue
                first, numbers, columns = part
                if numbers is not None:
                    row[first] = numbers[value]
                else:
                    row[first + columns[value]] = 1.0
        return found
