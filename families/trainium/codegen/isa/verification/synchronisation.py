"""Checks of synchronisation: a stream that passes computes the same on any timing of the machine.

Every dependence that data demands is covered by a semaphore (perhaps through others), and engines
that exclude each other on a memory hold its port.
"""

from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.families.trainium.codegen.isa.core import QUEUES
from tilesmith.families.trainium.codegen.isa.instructions import (
    LOCK_PSUM,
    LOCK_SBUF,
    OPERANDS,
    InstructionStream,
    Issue,
    Space,
)
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.families.trainium.codegen.isa.verification.report import Laws, breach, column, hold
from tilesmith.families.trainium.codegen.timing.dependences import dependences, required_waits


class Needs(NamedTuple):
    """What each row depends on, waits[start[i]:start[i + 1]], the row before it in its queue (-1:
    none), and its number there, from 1."""

    start: Ints
    waits: Ints
    previous: Ints
    number: Ints


@compiled
def _uncovered(n: int, issue: Issue, needs: Needs, clock: Ints) -> int:
    """The first place in `needs.waits` that no semaphore covers, or -1.

    `clock[i * QUEUES + q]`: how many instructions of queue q are known to be done when i starts.
    """
    for i in range(n):
        p = needs.previous[i]
        for q in range(QUEUES):
            clock[i * QUEUES + q] = 0
            if p >= 0:
                clock[i * QUEUES + q] = clock[p * QUEUES + q]
        for w in range(issue.wait_start[i], issue.wait_start[i + 1]):
            d = issue.waits[w]
            if d >= i:
                return int(needs.start[i])
            for q in range(QUEUES):
                here = i * QUEUES + q
                clock[here] = max(clock[here], clock[d * QUEUES + q])
            mine = i * QUEUES + issue.queue[d]
            clock[mine] = max(clock[mine], needs.number[d])
        for w in range(needs.start[i], needs.start[i + 1]):
            d = needs.waits[w]
            if clock[i * QUEUES + issue.queue[d]] < needs.number[d]:
                return w
    return -1


def verify_synchronisation(stream: InstructionStream) -> None:
    """Check synchronisation: missing semaphores and exclusive ports.

    Raises:
        VerificationError: naming the instruction and what it should have waited for.
    """
    hold(stream, _ports(stream))
    need_start, needs = required_waits(stream, dependences(stream), prune=False)
    n = len(stream)
    previous = np.full(n, -1, dtype=np.int64)
    for number in np.unique(stream.rows["queue"]):
        mine = np.flatnonzero(stream.rows["queue"] == number)
        previous[mine[1:]] = mine[:-1]
    table = Needs(need_start, needs, previous, stream.semaphores)
    bad = _uncovered(n, stream.issue, table, np.zeros(n * QUEUES, dtype=np.int64))
    if bad >= 0:
        row = int(np.searchsorted(need_start, bad, side="right")) - 1
        other = int(needs[bad])
        raise breach(
            stream,
            row,
            f"touches what instruction {other} ({instruction_text(stream, other)}) may not have "
            "finished with; a semaphore is missing",
        )


def _ports(stream: InstructionStream) -> Laws:
    """Engines that exclude each other on a memory hold its port when they touch it."""
    core, rows = stream.core, stream.rows
    touches = {space: np.zeros(len(stream), dtype=bool) for space in (Space.SBUF, Space.PSUM)}
    for operand in OPERANDS:
        spaces = column(stream, operand, "space")
        for space, mask in touches.items():
            mask |= spaces == space
    pairs = (
        (core.exclusive_sbuf, Space.SBUF, (1, 3), LOCK_SBUF, "vector and gpsimd"),
        (core.exclusive_psum, Space.PSUM, (1, 2), LOCK_PSUM, "vector and scalar"),
    )
    for exclusive, space, engines, bit, names in pairs:
        if exclusive:
            wrong = touches[space] & np.isin(rows["queue"], engines) & ((rows["lock"] & bit) == 0)
            law = "uses {} without holding its port, which {} exclude each other from"
            yield wrong, law, space.name, names
