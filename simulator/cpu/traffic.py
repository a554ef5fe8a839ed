"""Cache lines that move between the levels of the memory hierarchy, loop by loop, inside out.

For each access and level: T is the lines moved in one execution of a subtree. Around it comes a
loop of `trip` iterations whose body needs w lines of the cache: this tensor's conflict-weighted
size and what the other tensors touch, times CROWDING. While that fits, only lines not seen in
earlier iterations are fetched; beyond, hits fade:

    h = min(1, capacity / w)^FADE
    T <- h fresh + (1 - h) T trip        fresh = T where the loop does not move the access,
                                                 else T D_outside / D_inside

D are the distinct lines of an execution, on the average over full and short tiles: as many times
those of an iteration as there are iterations, but no more than the footprint, which takes all tiles
for full ones.

Unrolled loops are loops like any other, but what they do not move stays in a register. Statements
in one body that use the same buffer find what an earlier one fetched, with probability h. The
program as a whole is run again and again: what fits a cache then stays there.
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.simulator.cpu.facts import Facts, Floats
from tilesmith.simulator.cpu.footprint import Footprint, footprint
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.skeleton import LoopNode, Skeleton

FADE = 2.5
"""Exponent of the miss curve (fitted)."""
USABLE = (1.0, 1.0, 0.85)
"""Shares of L1, L2 and L3 that one nest can count on."""
CROWDING = 2.5
"""What lines of other tensors weigh: they come and go while this one's are kept (fitted)."""
STREAMS = 40.0
"""Contiguous streams that the prefetchers of L1 and L2 follow at a time."""
FAR_STREAMS = 16.0
"""And those that begin in memory, early enough."""


@dataclass(frozen=True)
class LineTraffic:
    """Lines moved by each memory access of a program, register accesses left out.

    Attributes:
        rows: for each entry its row in `Facts.strides`.
        blocks: and the block it belongs to.
        back: whether the entry stands for lines written back, not fetched.
        moved: lines drawn into L1, L2 and L3, (3, entries, n).
        lines: distinct lines by depth, (depths, entries, n).
        run, rows_apart, pitch: contiguous bytes in time order, parallel rows, bytes between them.
        streams: rows that are visited in turns before a run goes on.
        far_run: contiguous bytes of streams from memory.
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    back: tuple[bool, ...]
    moved: Floats
    lines: Floats
    run: Floats
    rows_apart: Floats
    pitch: Floats
    streams: Floats
    far_run: Floats


@dataclass(frozen=True)
class _Entry:
    row: int
    block: int
    depth: int
    buffer: int
    back: bool


def traffic_of(
    skeleton: Skeleton, facts: Facts, machine: CpuCore, cold: bool = False
) -> LineTraffic:
    """Walk the tree. See the module's docstring.

    `cold`: weights (constant parameters) are in memory when the program starts.
    """
    entries = _entries(skeleton)
    rows = [entry.row for entry in entries]
    prints = _footprints(entries, facts, machine, skeleton)
    walker = _Walker(skeleton, facts, machine, entries, prints, cold)
    walker.visit(skeleton.root, 0)
    depths = np.array([entry.depth for entry in entries])
    place = np.arange(len(entries))
    rows_apart = prints.rows[depths, place]
    at_once = prints.run[depths, place], rows_apart, prints.pitch[depths, place]
    run, pitch, streams = _runs(entries, facts, *at_once, STREAMS)
    far_run, _, _ = _runs(entries, facts, *at_once, FAR_STREAMS)
    return LineTraffic(
        tuple(rows),
        tuple(entry.block for entry in entries),
        tuple(entry.back for entry in entries),
        walker.moved,
        prints.lines,
        run,
        rows_apart,
        pitch,
        streams,
        far_run,
    )


def _entries(skeleton: Skeleton) -> list[_Entry]:
    """Memory accesses; a written one appears twice, as lines fetched and as lines written back."""
    entries, row = [], 0
    for number, block in enumerate(skeleton.blocks):
        for access in block.accesses:
            if not access.register:
                depth = len(block.serial)
                entries.append(_Entry(row, number, depth, access.buffer, False))
                if access.write:
                    entries.append(_Entry(row, number, depth, access.buffer, True))
            row += 1
    return entries


def _footprints(
    entries: list[_Entry], facts: Facts, machine: CpuCore, skeleton: Skeleton
) -> Footprint:
    """Footprints of each entry's nest below each depth."""
    sizes = [a.size for block in skeleton.blocks for a in block.accesses]
    rows = sorted({entry.row for entry in entries})
    strides, counts, longest = facts.strides[rows], facts.counts[rows], facts.longest[rows]
    order = np.argsort(strides, axis=1, kind="stable")
    strides = np.take_along_axis(strides, order, axis=1)
    counts = np.take_along_axis(counts, order, axis=1)
    longest = np.take_along_axis(longest, order, axis=1)
    depths = facts.strides.shape[1] + 1
    levels = np.arange(depths)[:, None, None, None]
    inside = np.where(order[None] >= levels, counts[None], 1.0)
    longest = np.where(order[None] >= levels, longest[None], 1.0)
    size = np.array([sizes[row] for row in rows], dtype=np.float64)[None, :, None]
    footprint_of = footprint(strides[None], inside, size, machine.line, machine.sets, longest)
    place = [rows.index(entry.row) for entry in entries]  # written accesses stand there twice
    return Footprint(
        footprint_of.lines[:, place],
        tuple(w[:, place] for w in footprint_of.weighted),
        footprint_of.run[:, place],
        footprint_of.rows[:, place],
        footprint_of.pitch[:, place],
    )


def _runs(
    entries: list[_Entry], facts: Facts, run: Floats, rows: Floats, pitch: Floats, most: float
) -> tuple[Floats, Floats, Floats]:
    """(contiguous bytes in time order, bytes between streams, streams) of each entry.

    From the inside out: a loop that continues the contiguous piece lengthens it, any other opens
    parallel streams; with more than `most` of them a prefetcher has forgotten the first.
    """
    places = np.array([entry.row for entry in entries], dtype=np.int64)
    depths = np.array([entry.depth for entry in entries], dtype=np.int64)
    streams = rows.copy()
    for back in range(1, int(depths.max(initial=0)) + 1):
        place = depths - back
        exists = (place >= 0)[:, None]
        stride = facts.strides[places, np.maximum(place, 0)]
        count = facts.longest[places, np.maximum(place, 0)]
        active = exists & (count > 1) & (stride > 0) & (streams <= most)
        joins = active & (stride <= run)
        opens = active & ~joins
        pitch = np.where(opens & (pitch == 0), stride, pitch)
        run = np.where(joins, run + (count - 1) * stride, run)
        streams = np.where(opens, streams * count, streams)
    return run, pitch, streams


class _Walker:
    """Holds `moved` while the tree is walked."""

    def __init__(
        self,
        skeleton: Skeleton,
        facts: Facts,
        machine: CpuCore,
        entries: list[_Entry],
        prints: Footprint,
        cold: bool,
    ) -> None:
        self._cold = cold
        self._skeleton = skeleton
        self._facts = facts
        self._entries = entries
        self._prints = prints
        self._capacity = np.array(
            [share * lines for share, lines in zip(USABLE, machine.lines, strict=True)]
        )[:, None, None]
        self._of_block: dict[int, list[int]] = {}
        for number, entry in enumerate(entries):
            self._of_block.setdefault(entry.block, []).append(number)
        self.moved = np.zeros((3, len(entries), facts.trips.shape[1]))
        self._distinct = np.zeros(self.moved.shape[1:])

    def visit(self, node: LoopNode, depth: int) -> list[int]:
        """Fill in `moved` for one node; returns the entries inside."""
        units: list[list[int]] = []
        for item in node.items:
            if isinstance(item, LoopNode):
                units.append(self.visit(item, depth + 1))
                continue
            mine = self._of_block.get(item, [])
            self._body(item, mine, depth)
            units += [[entry] for entry in mine]
        inside = [entry for unit in units for entry in unit]
        if not inside:
            return inside
        hits = self._hits(inside, depth)
        self._share(units, inside, hits)
        if node.loop < 0:
            stays = [
                self._cold and self._skeleton.constant[self._entries[e].buffer] for e in inside
            ]
            self.moved[:, inside] *= np.where(np.array(stays)[:, None], 1.0, 1.0 - hits)
        else:
            self._repeat(node.loop, inside, hits, depth)
        return inside

    def _body(self, number: int, mine: list[int], depth: int) -> None:
        """Lines of one execution of a block: from one vector outwards over its unrolled loops.

        Repeated loads of one address stay in a register.
        """
        if not mine:
            return
        block = self._skeleton.blocks[number]
        inner = depth + len(block.unrolled)
        self.moved[:, mine] = self._distinct[mine] = self._prints.lines[inner, mine]
        for place in range(inner - 1, depth - 1, -1):
            hits = self._hits(mine, place + 1)
            self._repeat(block.unrolled[place - depth], mine, hits, place + 1, held=True)
        self.moved[:, mine] *= self._facts.taken[number]

    def _hits(self, inside: list[int], depth: int) -> Floats:
        """Chance that a line touched in one execution of a body is still there in the next."""
        plain = self._prints.lines[depth, inside]
        buffers = sorted({self._entries[e].buffer for e in inside})
        belongs = [buffers.index(self._entries[e].buffer) for e in inside]
        size = np.zeros((len(buffers), plain.shape[-1]))
        for place, buffer in enumerate(belongs):
            size[buffer] = np.maximum(size[buffer], plain[place])
        others = size.sum(axis=0) - size[belongs]
        needed = CROWDING * others[None] + np.stack(
            [w[depth, inside] for w in self._prints.weighted]
        )
        share = np.minimum(1.0, self._capacity / needed)
        return np.asarray(share**FADE)

    def _share(self, units: list[list[int]], inside: list[int], hits: Floats) -> None:
        """Let each unit find what earlier units of the same body fetched of the same buffer."""
        seen: dict[tuple[int, bool], Floats] = {}
        where = {entry: place for place, entry in enumerate(inside)}
        for unit in units:
            groups: dict[tuple[int, bool], list[int]] = {}
            for entry in unit:
                key = (self._entries[entry].buffer, self._entries[entry].back)
                groups.setdefault(key, []).append(entry)
            for key, group in groups.items():
                total = self.moved[:, group].sum(axis=1)
                if key in seen:
                    hit = hits[:, where[group[0]]]
                    fresh = np.maximum(total - seen[key], 0.0) / np.maximum(total, 1e-9)
                    self.moved[:, group] *= ((1.0 - hit) + hit * fresh)[:, None]
                    total = np.maximum(total, seen[key])
                seen[key] = total

    def _repeat(
        self, loop: int, inside: list[int], hits: Floats, depth: int, held: bool = False
    ) -> None:
        """Put a loop around a body; `held`: what it does not move is not read again."""
        trip = self._facts.trips[loop]
        rows = [self._entries[entry].row for entry in inside]
        moves = self._facts.strides[rows, depth - 1] > 0
        within = self._distinct[inside]
        around = np.minimum(self._prints.lines[depth - 1, inside], trip * within)
        once = np.where(moves, np.maximum(around / within, 1.0), 1.0)
        self._distinct[inside] = within * once
        again = np.where(moves, trip, 1.0) if held else trip
        self.moved[:, inside] *= hits * once + (1.0 - hits) * again
