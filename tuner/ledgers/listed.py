"""A subspace whose legal configurations are those of a list, for whatever reason.

Spaces that others measured come as files of results: which limits they keep to is not told, what
is legal is what is there. Membership is a search among the sorted numbers of the rows, so that a
million configurations are looked up in a batch as fast as constraints are evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob, choice, tile
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.subspace import CHUNK, Rows, Subspace
from tilesmith.search_space.support.errors import ConfigError

_MOST = 1 << 62
"""Combinations of values that can be numbered."""


@dataclass(frozen=True)
class ListedSubspace(Subspace):
    """See the module's docstring.

    Attributes:
        numbers: of the legal rows in the full product, in mixed-radix order; ascending, distinct.
    """

    numbers: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64), compare=False, repr=False
    )

    @property
    def size(self) -> int:
        return len(self.numbers)

    @property
    def empty(self) -> bool:
        return not len(self.numbers)

    def legal(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows are in the list."""
        if not len(self.numbers):
            return np.zeros(len(rows), np.bool_)
        asked = rows @ strides(self.knobs)
        places = np.minimum(np.searchsorted(self.numbers, asked), len(self.numbers) - 1)
        return np.asarray(self.numbers[places] == asked)

    def satisfied(self, rows: Rows) -> NDArray[np.bool_]:
        return self.legal(rows)

    def check(self, config: Config) -> None:
        if not self.legal(self.row(config))[0]:
            raise ConfigError(f"configuration '{config}' is not among those of this space")

    def listing(self) -> Iterator[Rows]:
        for start in range(0, len(self.numbers), CHUNK):
            yield self._rows_of(self.numbers[start : start + CHUNK])

    def draw(self, rng: np.random.Generator, count: int) -> Rows:
        return self._rows_of(self.numbers[rng.integers(0, max(1, self.size), count)])

    def _rows_of(self, numbers: NDArray[np.int64]) -> Rows:
        return np.asarray(numbers[:, None] // strides(self.knobs) % self.radices)


def strides(knobs: Sequence[Knob]) -> NDArray[np.int64]:
    """What each knob's value index counts for in the number of a row, shape (knobs,)."""
    weights, product = [], 1
    for knob in reversed(knobs):
        weights.append(product)
        product *= len(knob.values)
    return np.array(weights[::-1], np.int64)


def listed_space(columns: Mapping[str, Sequence[KnobValue]]) -> SearchSpace:
    """The space whose legal configurations are the given ones, with the values met in them.

    A knob with one value only is fixed. Repeated configurations count once.

    Args:
        columns: by knob its value in each configuration; all equally long.

    Raises:
        ConfigError: more combinations of values than can be numbered.
    """
    fixed: list[tuple[str, KnobValue]] = []
    knobs: list[Knob] = []
    indices: list[NDArray[np.int64]] = []
    combinations = 1
    for name, column in columns.items():
        met = dict.fromkeys(column)
        if len(met) == 1:
            fixed.append((name, next(iter(met))))
            continue
        knob = _knob(name, met)
        place = {value: index for index, value in enumerate(knob.values)}
        knobs.append(knob)
        indices.append(np.array([place[value] for value in column], np.int64))
        combinations *= len(met)
    if combinations >= _MOST:
        raise ConfigError(
            f"{len(knobs)} knobs with {combinations:.3g} combinations of values are too many; "
            f"fewer than {_MOST:.3g} can be numbered"
        )
    count = len(next(iter(columns.values()), ()))
    rows = np.stack(indices, axis=1) if indices else np.zeros((count, 0), np.int64)
    numbers = np.unique(rows @ strides(knobs)) if count else np.zeros(0, np.int64)
    return SearchSpace((ListedSubspace(tuple(fixed), tuple(knobs), numbers=numbers),))


def _knob(name: str, met: Mapping[KnobValue, None]) -> Knob:
    """Integers are a scale; anything else are alternatives, in the order they were met."""
    numbers = [value for value in met if isinstance(value, int)]
    return tile(name, numbers) if len(numbers) == len(met) else choice(name, list(map(str, met)))
