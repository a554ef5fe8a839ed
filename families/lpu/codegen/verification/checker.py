"""The checker: a schedule that passes has no conflict, and its cycles are exact.

There are no caches, arbiters or queues that wait on the chip, so that a schedule without conflict
runs in exactly the cycles it says: simulating is checking. The laws are in `streams`, `slices` and
`values`; `regions` are those of what lies in MEM from the start. Nothing here knows how a schedule
was made.
"""

from itertools import pairwise

import numpy as np

from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.verification.report import breach
from tilesmith.families.lpu.codegen.verification.slices import check_slices
from tilesmith.families.lpu.codegen.verification.streams import check_streams
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.families.lpu.codegen.verification.values import check_values
from tilesmith.search_space.support.errors import VerificationError


def check(schedule: BurstSchedule) -> Matching:
    """Prove a schedule free of conflicts; gives who takes whose tokens.

    Raises:
        VerificationError: the first breach: instruction, cycle, slice and law.
    """
    check_slices(schedule)
    _regions(schedule)
    _resident(schedule)
    matching = check_streams(schedule)
    check_values(schedule, matching)
    return matching


def _regions(schedule: BurstSchedule) -> None:
    """What is in MEM before the first cycle lies inside banks, and on words of its own."""
    taken: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    roles = {place.name: place.role for place in schedule.places}
    for region in schedule.regions:
        if roles[region.tensor] not in ("input", "constant", "state") and not region.zeros:
            continue
        words = -(-region.rows // len(region.homes))
        for stripe in region.homes:
            for number, bank, address in stripe:
                taken.setdefault((number, bank), []).append(
                    (address, address + words, region.tensor)
                )
    for (number, bank), spans in taken.items():
        spans.sort()
        place = schedule.chip.queues[number]
        if spans[0][0] < 0 or spans[-1][1] > schedule.chip.bank_words:
            raise VerificationError(
                f"schedule '{schedule.name}': tensor '{spans[-1][2]}' leaves bank {bank} of {place}"
            )
        for (_, end, first), (start, _, second) in pairwise(spans):
            if start < end:
                raise VerificationError(
                    f"schedule '{schedule.name}': tensors '{first}' and '{second}' share words of "
                    f"bank {bank} of {place}"
                )


def _resident(schedule: BurstSchedule) -> None:
    """Nothing is written over inputs and weights, which stay."""
    kept = {place.name for place in schedule.places if place.role in ("input", "constant")}
    table, words = schedule.table, schedule.chip.bank_words
    spans = sorted(
        ((2 * number + bank) * words + address, -(-region.rows // len(region.homes)), region.tensor)
        for region in schedule.regions
        if region.tensor in kept
        for stripe in region.homes
        for number, bank, address in stripe
    )
    rows = np.flatnonzero(table["op"] == BurstOp.WRITE)
    if not spans or not len(rows):
        return
    first = np.array([start for start, _, _ in spans], np.int64)
    end = first + np.array([length for _, length, _ in spans], np.int64)
    mine = table[rows]
    begin = (2 * mine["queue"].astype(np.int64) + mine["bank"]) * words + mine["address"]
    last = begin + (mine["count"].astype(np.int64) - 1) * mine["step"]
    low, high = np.minimum(begin, last), np.maximum(begin, last)
    at = np.searchsorted(first, high, side="right") - 1
    for number in np.flatnonzero((at >= 0) & (end[at] > low)).tolist():
        step = max(abs(int(mine["step"][number])), 1)
        hit = np.arange(low[number], high[number] + 1, step)
        if ((hit >= first[at[number]]) & (hit < end[at[number]])).any():
            law = f"'{spans[at[number]][2]}' lies there and stays"
            raise breach(schedule, int(rows[number]), law)
