"""Which partitions a tile may begin at, and what is said where it finds no room.

Compute engines begin at partitions 0, 32, 64 and 96, and reach 128, 32, 64 and 32 from there. So a
tile of few partitions takes a quarter or two of a memory and no more: the first that has room,
unless its place is given. What an instruction reads together begins at one partition; tiles stand
at 0 as long as there is room, and who fills a memory says where tiles that are read together stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tilesmith.families.trainium.codegen.isa.instructions import QUARTER
from tilesmith.families.trainium.codegen.isa.lines import Line, told
from tilesmith.search_space.hardware.memory import Allocator

_SHOWN = 12
"""Lines of tiles, those that take most."""

WHOLE = 4 * QUARTER

_LAW = (
    f"engines begin at partitions 0, {QUARTER}, {2 * QUARTER} and {3 * QUARTER} alone: at most "
    f"four tiles, of up to {QUARTER} partitions each, share their bytes; rows of one partition "
    "each take least as the partitions of one tile"
)


@dataclass(frozen=True)
class HeldTile:
    """A tile in use: what it was made as, and the line that made it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    line: Line | None


Tiles = Mapping[tuple[int, int], HeldTile]
"""Tiles in use of one memory by first byte and first partition."""


def beginnings(partitions: int) -> Iterator[int]:
    """Partitions that a tile may begin at, so that compute engines reach all of it."""
    yield 0
    for start in (2 * QUARTER, QUARTER, 3 * QUARTER):
        if partitions <= start & -start:
            yield start


def full(allocator: Allocator, amount: int, wanted: HeldTile, tiles: Tiles) -> str:
    """Why a tile found no room: what it needs, and what takes the memory, the largest first."""
    taken = [
        (size, first, stop, offset, tiles.get((offset, first)))
        for (offset, first), (size, _, stop) in allocator.live.items()
    ]
    taken.sort(key=lambda one: (-one[0], _origin(one[4]), one[3], one[1]))
    groups = [
        list(members)
        for _, members in groupby(taken, lambda one: (one[0], one[2] - one[1], _origin(one[4])))
    ]
    groups.sort(key=lambda members: -sum(one[0] for one in members))
    lines = [_line(members) for members in groups[:_SHOWN]]
    if len(groups) > _SHOWN:
        rest = sum(len(members) for members in groups[_SHOWN:])
        lines.append(f"  and {rest} more tiles")
    beside = "beside it are" if lines else "nothing is beside it"
    few = any(stop - first < WHOLE for _, first, stop, *_ in taken)
    return "\n".join(
        (
            f"{allocator.short_of(amount, wanted.name)}; it is {_shape(wanted)}, and {beside}",
            *lines,
            *((_LAW,) if few else ()),
            "give tiles back with free(), choose smaller tiles or fewer buffers",
        )
    )


def _origin(tile: HeldTile | None) -> tuple[str, ...]:
    """What tiles that are told of together have in common."""
    return () if tile is None else (_shape(tile), told(tile.line))


def _line(members: Sequence[tuple[int, int, int, int, HeldTile | None]]) -> str:
    size, first, stop, offset, tile = members[0]
    names = [one[4].name for one in members if one[4] is not None]
    many = len(members) > 1
    who = f"'{names[0]}'" if len(set(names)) == 1 else f"'{names[0]}' to '{names[-1]}'"
    count = f"{len(members)} tiles of " if many else ""
    begins = sorted({one[1] for one in members})
    last = stop - first - 1
    rows = " and ".join(f"{start} to {start + last}" if last else f"{start}" for start in begins)
    where = "" if many else f" from byte {offset}"
    line = f", {told(tile.line)}" if tile is not None and tile.line is not None else ""
    kind = _shape(tile) if tile is not None else ""
    return f"  {count}{size} bytes{where}, partitions {rows}: {who} {kind}{line}"


def _shape(tile: HeldTile) -> str:
    return f"({', '.join(map(str, tile.shape))}) {tile.dtype}"
