"""How many cache lines a nest touches, and how well they spread over a cache's sets.

An access moves by `stride` bytes for `count` steps of each loop. Sorted by stride, loops whose
steps touch or overlap what is already covered extend it (halos of equal strides add counts - 1;
strides that interleave touch new lines until the whole span is covered); a larger stride starts a
new, disjoint repetition of it. The first group is a contiguous run of bytes; the lines of all
groups multiply.

Everything works on arrays: S stands for any leading shape, P for the loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.cpu.facts import Floats


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
    outer = (*shape[:-2], shape[-1])
    bits = lowest_bit(strides, line * max(sets))
    unit = np.broadcast_to(size, outer).astype(np.float64)
    number, run, whole = np.ones(outer), np.ones(outer), np.ones(outer)
    span, piece = unit.copy(), np.ones(outer)
    pitch, step = np.zeros(outer), np.ones(outer)
    first = np.ones(outer, dtype=bool)
    aligned = np.full(outer, float(line))
    covered = [np.ones(outer) for _ in sets]
    for place in range(shape[-2]):
        stride, count = strides[..., place, :], counts[..., place, :]
        active = (count > 1) & (stride > 0)
        if not active.any():
            continue
        most = longest[..., place, :]
        reaches = stride <= span
        whole_steps = np.remainder(stride, unit) == 0
        joins = active & (reaches | (first & (stride < line)))
        opens = active & ~joins
        grown = number + (count - 1) * stride / unit
        crossed = np.minimum(number * count, (unit * number + (count - 1) * stride) / line)
        grown = np.where(first | whole_steps, grown, crossed)
        if opens.any():
            ending = opens & first
            run = np.where(ending, unit * number, run)
            piece = np.where(ending, span, piece)
            pitch = np.where(ending, stride, pitch)
            repeats = opens & ~first
            for level, available in enumerate(sets):
                one = np.clip(run / line, 1.0, available)
                covered[level] = np.where(ending, one, covered[level])
                if repeats.any():
                    more = _spread(covered[level], step, number, line, available)
                    covered[level] = np.where(repeats, more, covered[level])
            whole = np.where(repeats, whole * number, whole)
            step = np.where(opens, bits[..., place, :], step)
            aligned = np.where(opens, np.minimum(aligned, step), aligned)
            first = first & ~opens
            unit = np.where(opens, stride, unit)
        number = np.where(joins, grown, np.where(opens, count, number))
        span = np.where(joins, span + (most - 1) * stride, np.where(opens, most * stride, span))
    run = np.where(first, unit * number, run)
    piece = np.where(first, span, piece)
    loose = np.maximum(1.0, run / line + 1.0 - aligned / line)
    lines = np.where(aligned >= line, np.ceil(run / line), loose)
    whole = np.where(first, 1.0, whole * number)
    total = lines * whole
    weighted = []
    for level, available in enumerate(sets):
        spread = _spread(covered[level], step, number, line, available)
        final = np.where(first, np.clip(run / line, 1.0, available), spread)
        weighted.append(total * available / np.maximum(np.minimum(final, total), 1.0))
    return Footprint(total, tuple(weighted), piece, whole, pitch)


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
