"""Collectives: what one stream may say of them, and that the streams of several cores meet.

Each core takes its collectives in order, and one is done when all of its group have come to it. So
streams of a mesh fit each other if they can be gone through together: again and again some group
whose members all have the same collective next. If none has while some are left, they wait for each
other for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import COLLECTIVE_QUEUE
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.codegen.isa.verification.report import Laws, column
from tilesmith.search_space.support.errors import VerificationError


@dataclass(frozen=True)
class Meeting:
    """A collective that several streams come to.

    Args:
        rows: its instruction in the stream of each core of its group, in the group's order.
    """

    kind: str
    group: tuple[int, ...]
    rows: tuple[int, ...]


def collectives(stream: isa.InstructionStream) -> Laws:
    """Laws of the collectives of one stream: queue, places, sizes."""
    rows = stream.rows
    mine = rows["op"] == isa.Opcode.COLLECTIVE
    yield (
        mine != (rows["queue"] == COLLECTIVE_QUEUE),
        "collectives, and nothing else, stand in their queue",
    )
    if not mine.any():
        return
    spaces = np.array([space.name for space in isa.Space])
    for operand in ("out", "in0"):
        space = column(stream, operand, "space", int(isa.Space.HBM))
        law = "{} is in {}; collectives go from HBM to HBM"
        yield mine & (space != isa.Space.HBM), law, operand, spaces[space]
    elements = stream.accesses["count"].prod(axis=1)
    given, received = (column(stream, operand, elements, 0) for operand in ("in0", "out"))
    kind = np.where(mine, rows["function"], 0)
    members = np.array([len(group) for group in stream.groups], dtype=np.int64)
    p = np.where(mine, members[np.where(mine, rows["function2"], 0)], 1)
    number = {name: i for i, name in enumerate(isa.COLLECTIVES)}
    smaller = np.where(kind == number["reduce_scatter"], received, given)
    larger = np.where(kind == number["reduce_scatter"], given, received)
    parts = np.isin(kind, [number["all_gather"], number["reduce_scatter"]])
    both = (rows["in0"] >= 0) & (rows["out"] >= 0)
    rule = np.where(parts, "the one must be a core's part of the other", "they must be equal")
    yield (
        mine & both & (larger != smaller * np.where(parts, p, 1)),
        "makes {} elements of {} over {} cores; {}", received, given, p, rule,
    )  # fmt: skip
    yield (
        mine & (kind == number["all_to_all"]) & (given % p != 0),
        "{} elements do not divide among {} cores", given, p,
    )  # fmt: skip
    one, other = column(stream, "in0", "dtype"), column(stream, "out", "dtype")
    yield mine & both & (one != other), "its operands have different dtypes"


def verify_together(streams: Mapping[int, isa.InstructionStream]) -> tuple[Meeting, ...]:
    """The collectives of several cores' streams, in an order in which they can take place.

    Args:
        streams: by the number of the core.

    Raises:
        VerificationError: cores would wait for each other for ever; the message names a collective
            and who does not come to it.
    """
    ahead = {
        core: np.flatnonzero(stream.rows["op"] == isa.Opcode.COLLECTIVE).tolist()
        for core, stream in streams.items()
    }
    at = dict.fromkeys(streams, 0)
    meetings: list[Meeting] = []
    waiting = list(streams)
    while waiting:
        core = waiting.pop()
        if at[core] == len(ahead[core]):
            continue
        row = ahead[core][at[core]]
        group = _group(streams[core], row)
        here = [
            ahead[member][at[member]] if member in ahead and at[member] < len(ahead[member]) else -1
            for member in group
        ]
        if not _same(streams, group, here):
            continue
        meetings.append(Meeting(isa.COLLECTIVES[_said(streams[core], row)[0]], group, tuple(here)))
        for member in group:
            at[member] += 1
        waiting += group
    stuck = [core for core in streams if at[core] < len(ahead[core])]
    if stuck:
        raise VerificationError(_deadlock(streams, ahead, at, stuck[0]))
    return tuple(meetings)


def _group(stream: isa.InstructionStream, row: int) -> tuple[int, ...]:
    return stream.groups[int(stream.rows["function2"][row])]


def _said(stream: isa.InstructionStream, row: int) -> tuple[int, ...]:
    """What all members of a collective must say alike: kind, sum, dtype, elements."""
    rows, table = stream.rows, stream.accesses
    kind = int(rows["function"][row])
    send, receive = isa.COLLECTIVES.index("send"), isa.COLLECTIVES.index("receive")
    access = int(rows["out"][row] if kind == receive else rows["in0"][row])
    elements = int(table["count"][access].prod())
    kind = send if kind == receive else kind
    return kind, int(rows["accumulate"][row]), int(table["dtype"][access]), elements


def _same(
    streams: Mapping[int, isa.InstructionStream], group: tuple[int, ...], here: list[int]
) -> bool:
    """Whether the members of a group all have the same collective next."""
    if -1 in here:
        return False
    pairs = [(streams[core], row) for core, row in zip(group, here, strict=True)]
    return (
        len({_said(stream, row) for stream, row in pairs}) == 1
        and len({_group(stream, row) for stream, row in pairs}) == 1
        and (isa.COLLECTIVES[_said(*pairs[0])[0]] != "send" or _sends(pairs))
    )


def _sends(pairs: list[tuple[isa.InstructionStream, int]]) -> bool:
    kinds = [isa.COLLECTIVES[int(stream.rows["function"][row])] for stream, row in pairs]
    return kinds == ["send", "receive"]


def _deadlock(
    streams: Mapping[int, isa.InstructionStream],
    ahead: Mapping[int, list[int]],
    at: Mapping[int, int],
    core: int,
) -> str:
    row = ahead[core][at[core]]
    group = _group(streams[core], row)
    what = f"core {core} waits in instruction {row} ({instruction_text(streams[core], row)})"
    rule = "; the cores of a group must come to the same collectives in the same order"
    for member in group:
        if member not in streams:
            return f"{what} for core {member}, which has no stream{rule}"
        if at[member] == len(ahead[member]):
            return f"{what} for core {member}, which has no collective left{rule}"
        other = ahead[member][at[member]]
        if _group(streams[member], other) != group or _said(streams[member], other) != _said(
            streams[core], row
        ):
            text = instruction_text(streams[member], other)
            return f"{what} for core {member}, whose next is instruction {other} ({text}){rule}"
    return f"{what}, which both of its cores are to send, or to receive{rule}"
