"""How many cache lines a nest touches, and how well they spread over a cache's sets.

An access moves by `stride` bytes for `count` steps of each loop. Sorted by stride, loops whose
steps touch or overlap what is already covered extend it (halos of equal strides add counts - 1;
strides that interleave touch new lines until the whole span is covered); a larger stride starts a
new, disjoint repetition of it. The first group is a contiguous run of bytes; the lines of all
groups multiply.

Everything works on arrays: S stands for any leading shape, P for the loops.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.simulator.cpu.facts import Floats

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Footprint:
    """What nests touch; all arrays of shape S.

    Attributes:
        lines: distinct cache lines.
        weighted: the same for each cache, weighted by conflicts: the lines of a cache that holds
            them in its most crowded set.
        run: bytes of one contiguous piece, of its full loops.
        rows: number of such pieces.
        pitch: bytes between neighbouring pieces; 0 where there is one.
    """

    lines: Floats
    weighted: tuple[Floats, ...]
    run: Floats
    rows: Floats
    pitch: Floats


def lowest_bit(values: Floats, most: int) -> Floats:
    """The largest power of two that divides each value, at most `most` (for 0: `most`)."""
    whole = values.astype(np.int64)
    return np.where(whole == 0, most, np.minimum(whole & -whole, most)).astype(np.float64)


def footprint(
    strides: Floats,
    counts: Floats,
    size: Floats,
    line: int,
    sets: tuple[int, ...],
    longest: Floats | None = None,
) -> Footprint:
    """Lines touched by nests.

    Args:
        strides: bytes, sorted ascending along the last-but-one axis, broadcastable to (S, P, n).
        counts: steps, (S, P, n); loops that do not take part have 1.
        size: bytes of an element, broadcastable to (S, n).
        line: bytes of a cache line.
        sets: number of sets of each cache.
        longest: steps of full loops, where `counts` are means over full and short ones; a stride
            that continues a full loop continues the run.
    """
    longest = counts if longest is None else longest
    shape = np.broadcast_shapes(strides.shape, counts.shape)
    nest = _Nest((*shape[:-2], shape[-1]), size, line, sets)
    bits = lowest_bit(strides, line * max(sets))
    for place in range(shape[-2]):
        stride, count = strides[..., place, :], counts[..., place, :]
        active = (count > 1) & (stride > 0)
        if active.any():
            nest.take_in(active, stride, count, longest[..., place, :], bits[..., place, :])
    return nest.touched()


class _Nest:
    """What the loops taken in so far touch; they come in order of their strides.

    The loops at hand cover `number` steps of `unit` bytes, `span` bytes in all (of full loops);
    before the first repetition (`first`) they are the contiguous piece itself, afterwards the
    latest group of repetitions, `whole` being the number of all earlier ones.
    """

    def __init__(
        self, outer: tuple[int, ...], size: Floats, line: int, sets: tuple[int, ...]
    ) -> None:
        self.line, self.sets = line, sets
        self.unit = np.broadcast_to(size, outer).astype(np.float64)
        self.span = self.unit.copy()
        self.number, self.whole = np.ones(outer), np.ones(outer)
        self.first = np.ones(outer, dtype=bool)
        self.run, self.piece, self.pitch = np.ones(outer), np.ones(outer), np.zeros(outer)
        self.step = np.ones(outer)
        """Largest power of two that divides the stride of the latest repetition."""
        self.aligned = np.full(outer, float(line))
        """The smallest such of all repetitions, at most a line."""
        self.covered = [np.ones(outer) for _ in sets]
        """Sets of each cache that the groups before the latest fall into."""

    def take_in(
        self, active: Bools, stride: Floats, count: Floats, most: Floats, bits: Floats
    ) -> None:
        """One more loop where `active`: it extends the group at hand or opens a repetition."""
        joins = active & ((stride <= self.span) | (self.first & (stride < self.line)))
        opens = active & ~joins
        extended = self._extended(stride, count)
        if opens.any():
            self._close_group(opens, stride, bits)
        self.number = np.where(joins, extended, np.where(opens, count, self.number))
        grown = np.where(opens, most * stride, self.span)
        self.span = np.where(joins, self.span + (most - 1) * stride, grown)

    def _extended(self, stride: Floats, count: Floats) -> Floats:
        """Steps of the group at hand with a loop that touches or overlaps it."""
        whole_steps = np.remainder(stride, self.unit) == 0
        grown = self.number + (count - 1) * stride / self.unit
        reach = (self.unit * self.number + (count - 1) * stride) / self.line
        crossed = np.minimum(self.number * count, reach)
        return np.where(self.first | whole_steps, grown, crossed)

    def _close_group(self, opens: Bools, stride: Floats, bits: Floats) -> None:
        """Where a repetition `opens`: what was at hand is the piece, or repeats it as a whole."""
        ending, repeats = opens & self.first, opens & ~self.first
        self.run = np.where(ending, self.unit * self.number, self.run)
        self.piece = np.where(ending, self.span, self.piece)
        self.pitch = np.where(ending, stride, self.pitch)
        for level, available in enumerate(self.sets):
            one = np.clip(self.run / self.line, 1.0, available)
            self.covered[level] = np.where(ending, one, self.covered[level])
            if repeats.any():
                more = self._spread(level)
                self.covered[level] = np.where(repeats, more, self.covered[level])
        self.whole = np.where(repeats, self.whole * self.number, self.whole)
        self.step = np.where(opens, bits, self.step)
        self.aligned = np.where(opens, np.minimum(self.aligned, self.step), self.aligned)
        self.first = self.first & ~opens
        self.unit = np.where(opens, stride, self.unit)

    def _spread(self, level: int) -> Floats:
        """Sets of a cache covered with the latest group."""
        covered, sets = self.covered[level], self.sets[level]
        return _spread(covered, self.step, self.number, self.line, sets)

    def touched(self) -> Footprint:
        """The footprint, once every loop is taken in."""
        first, line = self.first, self.line
        run = np.where(first, self.unit * self.number, self.run)
        piece = np.where(first, self.span, self.piece)
        loose = np.maximum(1.0, run / line + 1.0 - self.aligned / line)
        lines = np.where(self.aligned >= line, np.ceil(run / line), loose)
        whole = np.where(first, 1.0, self.whole * self.number)
        total = lines * whole
        weighted = []
        for level, available in enumerate(self.sets):
            one = np.clip(run / line, 1.0, available)
            final = np.where(first, one, self._spread(level))
            weighted.append(total * available / np.maximum(np.minimum(final, total), 1.0))
        return Footprint(total, tuple(weighted), piece, whole, self.pitch)


def _spread(covered: Floats, bits: Floats, count: Floats, line: int, sets: int) -> Floats:
    """Sets covered after `count` steps of a stride, from `covered` before them.

    `bits` is the largest power of two that divides the stride.
    """
    period = np.maximum(sets * line / bits, 1.0)
    steps = np.where(bits < covered * line, count, np.minimum(count, period))
    overlap = np.maximum(covered * line / bits, 1.0)
    uneven = np.where(count > period, np.ceil(overlap - 1e-6) / overlap, 1.0)
    return np.minimum(covered * steps, float(sets)) / uneven


def distinct(strides: Floats, counts: Floats) -> Floats:
    """Distinct addresses of nests: as `footprint`, in steps of the smallest stride.

    Args:
        strides: sorted ascending along the last-but-one axis, (S, P, n).
        counts: (S, P, n).
    """
    shape = np.broadcast_shapes(strides.shape, counts.shape)
    outer = (*shape[:-2], shape[-1])
    unit, number, whole = np.zeros(outer), np.ones(outer), np.ones(outer)
    for place in range(shape[-2]):
        stride, count = strides[..., place, :], counts[..., place, :]
        active = (count > 1) & (stride > 0)
        safe = np.where(unit > 0, unit, 1.0)
        joins = active & (unit > 0) & (stride <= unit * number) & (np.remainder(stride, safe) == 0)
        opens = active & ~joins
        whole = np.where(opens, whole * number, whole)
        number = np.where(
            joins, number + (count - 1) * stride / safe, np.where(opens, count, number)
        )
        unit = np.where(opens, stride, unit)
    return whole * number
