"""`LogicalMesh`: cores arranged along named axes, over which tensors are cut.

    LogicalMesh.of({"data": 4, "tensor": 8})        32 cores; the last axis is the innermost

Cores of one group along the last axis are neighbours in number, which a machine's numbering places
beside each other. Invariants: axes are at least two long (an axis of one core cuts nothing and is
left out); core numbers are distinct.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.support.errors import InputError


@dataclass(frozen=True)
class LogicalMesh:
    """Axes (name, length), outermost first, and the machine's number of each core, row-major."""

    axes: tuple[tuple[str, int], ...]
    cores: tuple[int, ...]

    @classmethod
    def of(cls, axes: Mapping[str, int], cores: Sequence[int] | None = None) -> "LogicalMesh":
        """A mesh; its cores are numbered from 0 on unless they are given.

        Raises:
            InputError: an axis shorter than one core, or not as many cores as places.
        """
        for name, size in axes.items():
            if size < 1:
                raise InputError(f"mesh axis '{name}' has {size} cores; it needs at least 1")
        places = math.prod(axes.values())
        numbers = tuple(range(places)) if cores is None else tuple(cores)
        if len(set(numbers)) != places or len(numbers) != places:
            raise InputError(
                f"a mesh of {text_of(axes)} has {places} places, not {len(numbers)} cores; "
                "give as many different cores as places"
            )
        return cls(tuple((n, s) for n, s in axes.items() if s > 1), numbers)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Length by axis."""
        return dict(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def size(self) -> int:
        """How many cores."""
        return len(self.cores)

    def coordinates(self) -> Iterator[dict[str, int]]:
        """Where each core is, in the order of `cores`."""
        for place in itertools.product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, place, strict=True))

    def groups(self, axes: Iterable[str]) -> list[tuple[int, ...]]:
        """Places (numbers into `cores`) that differ along these axes only, the first axis given
        slowest."""
        wanted = tuple(axes)
        groups: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
        for number, at in enumerate(self.coordinates()):
            key = tuple(at[name] for name in self.names if name not in wanted)
            groups.setdefault(key, {})[tuple(at[name] for name in wanted)] = number
        return [tuple(group[place] for place in sorted(group)) for group in groups.values()]

    def __str__(self) -> str:
        return text_of(self.sizes) or "1 core"


def text_of(axes: Mapping[str, int]) -> str:
    """`data 4 x tensor 8`."""
    return " x ".join(f"{name} {size}" for name, size in axes.items())
