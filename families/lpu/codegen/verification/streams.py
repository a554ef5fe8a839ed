"""Laws of streams: operands arrive, and no two tokens are ever in one cell.

- An operand is on its stream beside its slice in the cycle its instruction takes it.
- A token occupies the cell of each position on its way, from the slice that gave it to the one that
  takes it off, or to the end of the chip; another token in the same cell, cycle and direction is an
  error. Several may tap it on the way; one taken off does not travel on.
"""

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import Ints
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.verification.report import breach, may_meet, overlapping
from tilesmith.families.lpu.codegen.verification.tokens import Matching, TokenSource, given, taken


def check_streams(schedule: BurstSchedule) -> Matching:
    """Prove the laws of streams.

    Raises:
        VerificationError: the first breach.
    """
    matching = Matching(given(schedule), taken(schedule))
    _inside(schedule, matching)
    for number in matching.missing:
        raise _absent(schedule, matching, number)
    reach = _reach(schedule, matching)
    for number, sources in enumerate(matching.sources):
        _arrives(schedule, matching, reach, number, sources)
    _cells(schedule, matching, reach)
    return matching


def _inside(schedule: BurstSchedule, matching: Matching) -> None:
    """Streams exist."""
    for tokens in (matching.givers, matching.takers):
        wrong = (tokens.stream < 0) | (tokens.stream // 2 >= schedule.chip.streams)
        if wrong.any():
            row = int(tokens.row[np.flatnonzero(wrong)[0]])
            raise breach(schedule, row, f"there are {schedule.chip.streams} streams each way")


def _stream(number: int) -> str:
    return f"stream {'WE'[number % 2]}{number // 2}"


def _absent(schedule: BurstSchedule, matching: Matching, number: int) -> Exception:
    takers = matching.takers
    taus, place = takers.taus(number), int(takers.place[number])
    near = [
        giver
        for giver in np.flatnonzero(matching.givers.stream == takers.stream[number]).tolist()
        if matching.givers.place[giver] <= place
    ]
    there = np.unique(np.concatenate([matching.givers.taus(g) for g in near] or [taus[:0]]))
    tau = int(np.setdiff1d(taus, there)[0]) if len(np.setdiff1d(taus, there)) else int(taus[0])
    law = f"no operand arrives on {_stream(int(takers.stream[number]))} in that cycle"
    return breach(schedule, int(takers.row[number]), law, tau + place)


def _reach(schedule: BurstSchedule, matching: Matching) -> list[Ints | int]:
    """How far each burst's tokens travel: one number, or one a token."""
    givers, takers = matching.givers, matching.takers
    edge = schedule.chip.mxm_place
    reach: list[Ints | int] = [edge] * len(givers)
    for number in np.flatnonzero(takers.last).tolist():
        place = int(takers.place[number])
        for source in matching.sources[number]:
            known = reach[source.giver]
            if source.theirs is None or len(source.theirs) == givers.count[source.giver]:
                reach[source.giver] = (
                    min(known, place) if isinstance(known, int) else np.minimum(known, place)
                )
            else:
                if not isinstance(known, np.ndarray):
                    known = np.full(givers.count[source.giver], known, np.int64)
                known[source.theirs] = np.minimum(known[source.theirs], place)
                reach[source.giver] = known
    return reach


def _arrives(
    schedule: BurstSchedule,
    matching: Matching,
    reach: list[Ints | int],
    number: int,
    sources: list[TokenSource],
) -> None:
    """Nobody takes what was taken off before."""
    takers = matching.takers
    place = int(takers.place[number])
    for source in sources:
        known = reach[source.giver]
        theirs = slice(None) if source.theirs is None else source.theirs
        short = known < place if isinstance(known, int) else (known[theirs] < place).any()
        if short:
            where = _stream(int(takers.stream[number]))
            law = f"its operand on {where} is taken off by another instruction before it comes"
            raise breach(schedule, int(takers.row[number]), law)


def _cells(schedule: BurstSchedule, matching: Matching, reach: list[Ints | int]) -> None:
    """No two tokens in one cell."""
    givers = matching.givers
    first, second = overlapping(givers.stream, givers.tau, givers.end)
    if not len(first):
        return
    far = np.array([r if isinstance(r, int) else int(r.max()) for r in reach], np.int64)
    meet = (givers.place[first] <= far[second]) & (givers.place[second] <= far[first])
    meet = meet & may_meet(
        (givers.tau[first], givers.interval[first]), (givers.tau[second], givers.interval[second])
    )
    for a, b in zip(first[meet].tolist(), second[meet].tolist(), strict=True):
        for tau in np.intersect1d(givers.taus(a), givers.taus(b)).tolist():
            ends = []
            for n in (a, b):
                known = reach[n]
                token = (tau - int(givers.tau[n])) // max(int(givers.interval[n]), 1)
                ends.append(known if isinstance(known, int) else int(known[token]))
            place = max(int(givers.place[a]), int(givers.place[b]))
            if place <= min(ends):
                law = (
                    f"two tokens in one cell of {_stream(int(givers.stream[a]))}: the other is of "
                    f"instruction {int(givers.row[a])}"
                )
                raise breach(schedule, int(givers.row[b]), law, tau + place)
