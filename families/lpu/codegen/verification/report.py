"""What a breach of a law says: the instruction, its cycle, its slice, the law."""

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.isa.text import burst_text
from tilesmith.search_space.support.errors import VerificationError


def breach(
    schedule: BurstSchedule, row: int, law: str, cycle: int | None = None
) -> VerificationError:
    """The error of one burst; in one of its cycles, if that is known."""
    burst = schedule.table[row]
    at = int(burst["cycle"]) if cycle is None else cycle
    place = schedule.chip.queues[int(burst["queue"])]
    return VerificationError(
        f"schedule '{schedule.name}', instruction {row} ({burst_text(schedule, row)}), cycle {at}, "
        f"slice {place}: {law}"
    )


def overlapping(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Pairs of intervals [start, end) of one group that have a cycle in common."""
    if not len(start):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low = int(start.min())
    stride = int(end.max()) - low + 1
    base = group.astype(np.int64) * stride - low
    order = np.argsort(base + start, kind="stable")
    starts, ends = (base + start)[order], (base + end)[order]
    until = np.searchsorted(starts, ends)  # others that begin before its end
    counts = np.maximum(until - np.arange(len(starts)) - 1, 0)
    first = np.repeat(np.arange(len(starts)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[first], order[first + 1 + offsets]


def common(a: tuple[int, int, int], b: tuple[int, int, int]) -> Ints:
    """Numbers in two progressions (first, count, step)."""
    first, second = (at + np.arange(count, dtype=np.int64) * step for at, count, step in (a, b))
    return np.intersect1d(first, second)


def may_meet(first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> NDArray[np.bool_]:
    """Mask of pairs of (start, step) progressions whose residues agree."""
    step = np.gcd(first[1], second[1])
    return np.asarray((first[0] - second[0]) % step == 0, np.bool_)
