"""Transfers of one step of a collective, as arrays: a thousand cores have a million of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cores = NDArray[np.signedinteger[Any]]
Shares = NDArray[np.float64]

Lane = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Ways:
    """Sending and receiving cores, one pair after the other. Told apart by identity, so that what
    is found out about many of them is found out once."""

    sources: Cores
    targets: Cores

    @classmethod
    def of(cls, sources: Cores, targets: Cores) -> "Ways":
        """Pairs in the order of the elements of arrays of any shape."""
        return cls(sources.ravel(), targets.ravel())

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class Transfers:
    """What goes which way.

    Args:
        share: of the whole tensor, the same each way or one for each.
    """

    ways: Ways
    share: float | Shares

    @classmethod
    def joined(cls, parts: "Sequence[Transfers]") -> "Transfers":
        """All of several."""
        if len(parts) == 1:
            return parts[0]
        sources = np.concatenate([part.ways.sources for part in parts])
        targets = np.concatenate([part.ways.targets for part in parts])
        return cls(Ways(sources, targets), np.concatenate([part.shares for part in parts]))

    @property
    def shares(self) -> Shares:
        """The share of each."""
        return np.broadcast_to(self.share, len(self.ways))

    def __len__(self) -> int:
        return len(self.ways)

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        sources, targets = self.ways.sources.tolist(), self.ways.targets.tolist()
        return iter(zip(sources, targets, self.shares.tolist(), strict=True))


class Lanes(tuple[Lane, ...]):
    """Ordered groups of equally many cores."""

    @cached_property
    def cores(self) -> Cores:
        """A lane a row."""
        return np.array(self, dtype=np.int32)

    @cached_property
    def pairs(self) -> Ways:
        """From every member of every lane to every other."""
        one, other = np.nonzero(~np.eye(len(self[0]), dtype=bool))
        return Ways.of(self.cores[:, one], self.cores[:, other])
