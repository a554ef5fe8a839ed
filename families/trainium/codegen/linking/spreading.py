"""Spreading: every tile of a linked program gets a place that was given up long ago.

A kernel's tiles rotate over a few places, two for weights that load while others are used. Among
kernels there is more room: here each tile (not each place) is placed for itself, in the order of
the program. What is loaded from tensors that are there from the start (weights) goes where the last
tile was done first: so it loads as far ahead as SBUF is large. Other tiles take what was given up
most recently, if only `DISTANCE` ago: enough not to wait for each other, and the rest stays free.

Only a tile that is written before it is read can be moved so; others count on what an earlier tile
left in their place (the frame of a padded image) and stay together with those that share bytes with
them. Invariants: tiles in use at the same time never overlap, nor do they overlap residents; a tile
in PSUM keeps its place within its bank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    OPERANDS,
    Ints,
    Opcode,
    Space,
)
from tilesmith.families.trainium.codegen.linking.draft import Draft
from tilesmith.families.trainium.codegen.linking.strides import visited
from tilesmith.families.trainium.schedules.building_blocks.machine import ALIGNMENT
from tilesmith.search_space.support.errors import CodegenError

DISTANCE = 64
"""Rows of the draft after which a place that was given up holds nobody up any more."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Unit:
    """Tiles that are placed together.

    Attributes:
        start, stop: bytes of a partition of the memory that they have in their kernel.
        first, last: rows of the draft between which they are in use.
        ahead: whether they may be filled long before their kernel runs.
    """

    space: Space
    start: int
    stop: int
    tiles: tuple[int, ...]
    first: int
    last: int
    ahead: bool = False


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of SBUF that are taken from row `first` to `last` of the draft."""

    start: int
    stop: int
    first: int
    last: int


def life(draft: Draft) -> tuple[Ints, Ints]:
    """First and last row that touches each allocation (first > last: none), shape (a,)."""
    first = np.full(len(draft.allocations), len(draft.owners), dtype=np.int64)
    last = np.full(len(draft.allocations), -1, dtype=np.int64)
    for operand in OPERANDS:
        index = draft.rows[operand]
        rows = np.flatnonzero(index >= 0)
        owner = draft.accesses["allocation"][index[rows]]
        chip = owner >= 0
        np.minimum.at(first, owner[chip], rows[chip])
        np.maximum.at(last, owner[chip], rows[chip])
    return first, last


def units(draft: Draft, groups: Sequence[tuple[Space, int, int, tuple[int, ...]]]) -> list[_Unit]:
    """Groups of tiles that share bytes, taken apart where each of them stands for itself."""
    first, last = life(draft)
    users = draft.users()
    known = draft.allocations
    early = loadable(draft)
    units = []
    for space, start, stop, tiles in groups:
        apart = len(tiles) > 1 and all(stands_alone(draft, tile, users[tile]) for tile in tiles)
        if not apart:
            rows = int(first[list(tiles)].min()), int(last[list(tiles)].max())
            units.append(_Unit(space, start, stop, tiles, *rows, early.issuperset(tiles)))
            continue
        for tile in tiles:
            low, high = known[tile].offset, known[tile].offset + known[tile].bytes
            rows = int(first[tile]), int(last[tile])
            units.append(_Unit(space, low, high, (tile,), *rows, tile in early))
    return sorted(units, key=lambda unit: (unit.first, unit.start - unit.stop, unit.tiles))


def loadable(draft: Draft) -> set[int]:
    """Tiles that are loaded, and by nothing else written, from tensors that the program only
    reads: as early as there is room."""
    table, rows = draft.accesses, draft.rows
    inputs = np.array([tensor.role == "input" for tensor in draft.tensors])
    source = np.maximum(rows["in0"], 0)
    loads = (rows["op"] == Opcode.LOAD) & inputs[table["tensor"][source]]
    owner = np.append(table["allocation"], -1)
    early = set(owner[rows["out"][loads]].tolist())
    late = {*owner[rows["out"][~loads]].tolist(), *owner[rows["out2"]].tolist()}
    return early - late


def stands_alone(draft: Draft, tile: int, users: Sequence[tuple[int, str]]) -> bool:
    """Whether all that is read of a tile was written to it before."""
    table = draft.accesses
    home = draft.allocations[tile]
    ordered = sorted(users, key=lambda user: (user[0], user[1] in ("out", "out2")))
    accesses = [int(draft.rows[operand][row]) for row, operand in ordered]
    sizes = np.unique(DTYPE_BYTES[table["dtype"][accesses]])
    if len(sizes) != 1:
        return False
    size = int(sizes[0])
    ends = np.unique(
        np.concatenate([table["partition"][accesses], _stops(table, np.array(accesses))])
    )
    written = np.zeros((len(ends), -(-home.bytes // size)), dtype=bool)
    for access, (_, operand) in zip(accesses, ordered, strict=True):
        low = int(np.searchsorted(ends, table["partition"][access]))
        high = int(np.searchsorted(ends, _stops(table, np.array([access]))[0]))
        at = (int(table["offset"][access]) - home.offset) // size
        elements = at + visited(table["count"][access, 1:], table["stride"][access, 1:])
        if operand in ("out", "out2"):
            written[low:high, elements] = True
        elif not written[low:high, elements].all():
            return False
    return True


def _stops(table: Mapping[str, Ints], accesses: Ints) -> Ints:
    """One past the last partition of each access."""
    stops: Ints = table["partition"][accesses] + table["count"][accesses, 0]
    return stops


@dataclass
class _Memory:
    """When each granule of a memory was, or will be, in use; in rows of the draft."""

    granule: int
    until: NDArray[np.int64]
    held: list[HeldBytes] = field(default_factory=list)

    def find(self, unit: _Unit, phase: int, step: int) -> int:
        """The granule where a unit goes: `phase` modulo `step`; -1 if there is no room."""
        size = -(-(unit.stop - unit.start) // self.granule)
        busy = np.where(self.until >= unit.first, _NEVER, self.until)
        for held in self.held:
            cells = slice(held.start // self.granule, -(-held.stop // self.granule))
            if held.first <= unit.last and unit.first <= held.last:
                busy[cells] = _NEVER
            elif held.last < unit.first:
                busy[cells] = np.maximum(busy[cells], held.last)
        latest = _window_maximum(busy, size)[phase::step]
        if not len(latest) or latest.min() == _NEVER:
            return -1
        recent = np.where(latest < unit.first - DISTANCE, latest, -1)
        best = latest.argmin() if unit.ahead or recent.max() < 0 else recent.argmax()
        return phase + step * int(best)

    def take(self, cell: int, unit: _Unit) -> None:
        size = -(-(unit.stop - unit.start) // self.granule)
        self.until[cell : cell + size] = unit.last


def _window_maximum(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The largest of each `size` neighbours."""
    if size > len(values):
        return values[:0]
    largest, width = values, 1
    while 2 * width <= size:
        largest = np.maximum(largest[:-width], largest[width:])
        width *= 2
    rest = size - width
    return np.maximum(largest[: len(largest) - rest], largest[rest:]) if rest else largest


def spread(draft: Draft, moving: Sequence[_Unit], held: Sequence[HeldBytes]) -> dict[int, int]:
    """How far each tile moves (bytes), by allocation.

    Args:
        moving: in the order of their first rows.
        held: places of residents.

    Raises:
        CodegenError: some tile finds no room.
    """
    core = draft.core
    sizes = {Space.SBUF: core.sbuf_bytes, Space.PSUM: core.psum_bytes}
    memories = {
        space: _Memory(ALIGNMENT, np.full(size // ALIGNMENT, -1, dtype=np.int64))
        for space, size in sizes.items()
    }
    memories[Space.SBUF].held = list(held)
    bank = core.bank_bytes // ALIGNMENT
    shifts: dict[int, int] = {}
    for unit in moving:
        memory = memories[unit.space]
        psum = unit.space == Space.PSUM
        phase = unit.start // ALIGNMENT % bank if psum else 0
        cell = memory.find(unit, phase, bank if psum else 1)
        if cell < 0:
            name = draft.allocations[unit.tiles[0]].name
            raise CodegenError(f"tile '{name}' finds no room in {unit.space.name} beside others")
        memory.take(cell, unit)
        shifts.update(
            dict.fromkeys(unit.tiles, cell * ALIGNMENT + unit.start % ALIGNMENT - unit.start)
        )
    return shifts
