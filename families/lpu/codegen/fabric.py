"""Chips that are linked each to each other: how ways, and members of a group, are counted.

All chips run one program. So that they can, everything is counted from the chip itself: chips stand
along axes, row-major, and way `w` of a chip leads to the one whose place is the chip's plus that of
chip `w`, on each axis modulo its length. With one axis that is the chip `w` further on.

    chip i, way w   <──────►   chip i + w, way -w        8:     -w is 8 - w
                                                         2 x 4: way 5 is (1, 1), and -5 is 7 (1, 3)

So a group of chips along some axes finds its members by the same ways from each of them, and link
numbers mean cables that are laid so. Every way has an instruction queue of its own: one of the two
links that a queue serves.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilesmith.families.lpu.codegen.chip import LINKS_A_QUEUE, Chip
from tilesmith.search_space.support.errors import TargetError

Digits = tuple[int, ...]


def link_of(way: int) -> int:
    """The link that is a way."""
    return LINKS_A_QUEUE * (way - 1)


def way_of(link: int) -> int:
    """The way that a link is."""
    return link // LINKS_A_QUEUE + 1


def aligned(flight: int, chip: Chip) -> int:
    """Cycles from a send to its receive that links are aligned to: so many, or one more where
    vectors of two bytes and more an element would be sent and received in the same cycles."""
    return flight + (flight % (2 * chip.link_cycles) == 0)


def check_links(chips: int, chip: Chip) -> None:
    """Raise `TargetError` where a chip has not a way to every other."""
    most = chip.links // LINKS_A_QUEUE + 1
    if not 2 <= chips <= most:
        raise TargetError(
            f"{chips} chips of target '{chip.target.name}' are not linked each to each other with "
            f"{chip.links} links a chip; 2 to {most} are"
        )


@dataclass(frozen=True)
class ChipGroup:
    """A chip's way to every other of its group, and back: member e is number e counted from the
    chip itself, the last axis fastest.

    Attributes:
        axes: along which its members differ.
        ways: to members 1, 2, ...
        backs: the ways that they have to the chip.
    """

    axes: tuple[int, ...]
    ways: tuple[int, ...]
    backs: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ways) + 1


@dataclass(frozen=True)
class ChipFabric:
    """Chips along axes; see the module's docstring.

    Attributes:
        extents: chips along each axis, the last one's are neighbours in number.
    """

    extents: tuple[int, ...]

    @cached_property
    def chips(self) -> int:
        return prod(self.extents)

    @cached_property
    def places(self) -> tuple[Digits, ...]:
        """Where each chip stands."""
        return tuple(itertools.product(*map(range, self.extents)))

    def number(self, place: Sequence[int]) -> int:
        """The chip at a place, modulo the axes' lengths."""
        return self.places.index(tuple(d % n for d, n in zip(place, self.extents, strict=True)))

    def there(self, chip: int, way: int) -> int:
        """The chip at the other end of a way."""
        both = zip(self.places[chip], self.places[way], strict=True)
        return self.number([one + other for one, other in both])

    def back(self, way: int) -> int:
        """The way that the chip at the other end has here."""
        return self.number([-digit for digit in self.places[way]])

    def group(self, axes: Sequence[int] = ()) -> ChipGroup:
        """Along axes, the first slowest; along all by default."""
        along = tuple(axes) or tuple(range(len(self.extents)))
        ways = []
        for member in itertools.product(*(range(self.extents[axis]) for axis in along)):
            place = [0] * len(self.extents)
            for axis, digit in zip(along, member, strict=True):
                place[axis] = digit
            ways.append(self.number(place))
        return ChipGroup(along, tuple(ways[1:]), tuple(self.back(way) for way in ways[1:]))

    def member(self, chip: int, axes: Sequence[int], turn: int) -> int:
        """Which member of its group along axes, as all of them count, is number `turn` counted from
        a chip."""
        number = 0
        for axis in axes:
            inner = prod(self.extents[a] for a in axes[axes.index(axis) + 1 :])
            extent = self.extents[axis]
            number = number * extent + (self.places[chip][axis] + turn // inner) % extent
            turn %= inner
        return number
