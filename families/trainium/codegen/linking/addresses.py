"""Addresses on chip for the tiles of several kernels that run one after another.

Resident tensors live from the kernel that writes them to the last that reads them and never move.
Tiles are spread over what is left (`spreading`), so that weights load far ahead. Where that leaves
some tile no room, a kernel's own tiles keep their distances where they share bytes, each place is
found by first fit, and a kernel avoids the places of as many kernels before it as it can; where
first fit fails, too, a kernel alone in a memory has its tiles where it was generated with them.
Invariants: tiles in use at the same time, and residents alive then, never overlap; a tile in PSUM
keeps its place within its bank.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import OPERANDS, Ints, Space
from tilesmith.families.trainium.codegen.linking.draft import Draft
from tilesmith.families.trainium.codegen.linking.spreading import HeldBytes, life, spread, units
from tilesmith.families.trainium.schedules.building_blocks.machine import ALIGNMENT
from tilesmith.search_space.support.errors import CodegenError

LOOK_BACK = (6, 4, 3, 2, 1, 0)
"""How many kernels before it a kernel tries not to disturb, most first."""


@dataclass(frozen=True)
class Resident:
    """A tensor that stays on chip.

    Attributes:
        tensor: its number among the draft's.
        allocation: its number among the draft's.
        nbytes: in each partition.
        first, last: parts between which it lives.
        saved: bytes that are not moved because of it.
        kept: whether it is stored to HBM as well.
    """

    tensor: int
    name: str
    allocation: int
    nbytes: int
    first: int
    last: int
    saved: int
    kept: bool


@dataclass(frozen=True)
class _Group:
    """Tiles of one part that share bytes, as one: bytes `start` to `stop` of a memory."""

    part: int
    space: Space
    start: int
    stop: int
    tiles: tuple[int, ...]


def place_tiles(draft: Draft, residents: Iterable[Resident], shared: bool = False) -> None:
    """Give every tile of a draft its address, in place.

    Args:
        shared: whether several parts may use one tile, which then has to be spread.

    Raises:
        CodegenError: residents and a kernel's tiles do not fit together.
    """
    residents = tuple(residents)
    moved = _place_residents(draft, residents)
    shifts = np.zeros(len(draft.allocations), dtype=np.int64)
    for resident in residents:
        shifts[resident.allocation] = moved[resident.allocation][0]
    try:
        shift_of = _spread(draft, residents, moved)
    except CodegenError:
        if shared:
            raise
        shift_of = _by_part(draft, residents, moved)
    shifts[list(shift_of)] = list(shift_of.values())
    _shift(draft, shifts)


def _spread(
    draft: Draft, residents: tuple[Resident, ...], moved: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Every tile where the last one was done longest ago; how far it moves, by allocation."""
    first, last = life(draft)
    held = [
        HeldBytes(*moved[r.allocation], int(first[r.allocation]), int(last[r.allocation]))
        for r in residents
    ]
    groups = [
        (group.space, group.start, group.stop, group.tiles)
        for groups in byte_groups(draft, {r.allocation for r in residents})
        for group in groups
    ]
    return spread(draft, units(draft, groups), held)


def _by_part(
    draft: Draft, residents: tuple[Resident, ...], moved: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Every place of a part as far from its neighbours' as there is room; tiles stay in theirs."""
    shifts: dict[int, int] = {}
    homes: list[dict[Space, list[tuple[int, int]]]] = []
    for part, groups in enumerate(byte_groups(draft, {r.allocation for r in residents})):
        alive = [moved[r.allocation] for r in residents if r.first <= part <= r.last]
        home: dict[Space, list[tuple[int, int]]] = {Space.SBUF: [], Space.PSUM: []}
        for space, taken in home.items():
            own = [group for group in groups if group.space == space]
            for group, start in _starts(draft, own, alive, homes):
                taken.append((start, start + group.stop - group.start))
                shifts |= dict.fromkeys(group.tiles, start - group.start)
        homes.append(home)
    return shifts


def _starts(
    draft: Draft,
    groups: list[_Group],
    alive: list[tuple[int, int]],
    homes: list[dict[Space, list[tuple[int, int]]]],
) -> list[tuple[_Group, int]]:
    """Where the groups of a part in one memory begin: first fit, or else where the kernel alone has
    them, which is legal unless residents stand there."""
    starts: list[tuple[_Group, int]] = []
    try:
        for group in sorted(groups, key=lambda g: g.start - g.stop):
            own = [(start, start + one.stop - one.start) for one, start in starts]
            starts.append((group, _find(draft, group, own, alive, homes)))
    except CodegenError:
        if alive and groups[0].space == Space.SBUF:
            raise
        return [(group, group.start) for group in groups]
    return starts


def tile_bytes(draft: Draft) -> Ints:
    """Bytes of SBUF in a partition that each part's tiles take, shape (parts,)."""
    sizes = [
        sum(
            -(-(g.stop - g.start) // ALIGNMENT) * ALIGNMENT for g in groups if g.space == Space.SBUF
        )
        for groups in byte_groups(draft, set())
    ]
    return np.array(sizes, dtype=np.int64)


def _place_residents(draft: Draft, residents: tuple[Resident, ...]) -> dict[int, tuple[int, int]]:
    """Bytes of each resident by allocation: from the top of SBUF down, largest first."""
    size = draft.core.sbuf_bytes
    placed: list[tuple[Resident, int, int]] = []
    for resident in sorted(residents, key=lambda r: (-r.nbytes, r.first)):
        taken = sorted(
            (stop, start)
            for other, start, stop in placed
            if other.first <= resident.last and resident.first <= other.last
        )
        stop = size
        for high, low in reversed(taken):
            if high <= stop - resident.nbytes:
                break
            stop = min(stop, low)
        if stop < resident.nbytes:
            raise CodegenError(f"tensor '{resident.name}' does not fit SBUF beside others")
        placed.append((resident, stop - resident.nbytes, stop))
    return {resident.allocation: (start, stop) for resident, start, stop in placed}


def byte_groups(draft: Draft, without: set[int]) -> list[list[_Group]]:
    """Tiles of every part, those that share bytes together; one that several parts use is of the
    first."""
    tiles_of: list[set[int]] = [set() for _ in draft.parts]
    parts = np.full(len(draft.allocations) + 1, len(draft.parts), dtype=np.int64)
    for operand in OPERANDS:
        index = draft.rows[operand]
        used = index >= 0
        np.minimum.at(parts, draft.accesses["allocation"][index[used]], draft.owners[used])
    for tile in np.flatnonzero(parts[:-1] < len(draft.parts)).tolist():
        if tile not in without:
            tiles_of[parts[tile]].add(tile)
    return [_merge(draft, part, tiles) for part, tiles in enumerate(tiles_of)]


def _merge(draft: Draft, part: int, tiles: set[int]) -> list[_Group]:
    groups: list[_Group] = []
    known = draft.allocations
    for tile in sorted(tiles, key=lambda t: (known[t].space, known[t].offset)):
        place = known[tile]
        stop = place.offset + place.bytes
        last = groups[-1] if groups else None
        if last is not None and last.space == place.space and place.offset < last.stop:
            merged = replace(last, stop=max(stop, last.stop), tiles=(*last.tiles, tile))
            groups[-1] = merged
        else:
            groups.append(_Group(part, place.space, place.offset, stop, (tile,)))
    return groups


def _find(
    draft: Draft,
    group: _Group,
    own: list[tuple[int, int]],
    residents: list[tuple[int, int]],
    homes: list[dict[Space, list[tuple[int, int]]]],
) -> int:
    """Where a group fits, away from its neighbours in time if that can be."""
    sbuf = group.space == Space.SBUF
    core = draft.core
    limit = core.sbuf_bytes if sbuf else core.psum_bytes
    step = ALIGNMENT if sbuf else core.bank_bytes
    for depth in LOOK_BACK:
        taken = [*own, *(residents if sbuf else ())]
        for home in homes[len(homes) - depth :] if depth else ():
            taken += home[group.space]
        start = _first_fit(sorted(taken), group.stop - group.start, group.start % step, step, limit)
        if start >= 0:
            return start
    raise CodegenError(
        f"the tiles of '{draft.parts[group.part]}' do not fit {group.space.name} beside what stays "
        "in it"
    )


def _first_fit(taken: list[tuple[int, int]], size: int, phase: int, step: int, limit: int) -> int:
    """The first free start of `size` bytes that is `phase` modulo `step`; -1 if there is none."""
    start = phase
    for low, high in taken:
        if start + size <= low:
            break
        if high > start:
            start = phase + -(-(high - phase) // step) * step
    return start if start + size <= limit else -1


def _shift(draft: Draft, shifts: Ints) -> None:
    draft.allocations = [
        replace(a, offset=a.offset + int(shift))
        for a, shift in zip(draft.allocations, shifts, strict=True)
    ]
    owner = draft.accesses["allocation"]
    chip = owner >= 0
    draft.accesses["offset"] = draft.accesses["offset"].copy()
    draft.accesses["offset"][chip] += shifts[owner[chip]]
