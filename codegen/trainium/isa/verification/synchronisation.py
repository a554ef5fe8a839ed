"""Checks of synchronisation: a stream that passes computes the same on any timing of the machine.

Every dependence that data demands is covered by a semaphore (perhaps through others), and engines
that exclude each other on a memory hold its port.
"""

from __future__ import annotations

import numpy as np

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.codegen.trainium.isa.core import QUEUES
from tilesmith.codegen.trainium.isa.instructions import (
    LOCK_PSUM,
    LOCK_SBUF,
    OPERANDS,
    InstructionStream,
    Space,
)
from tilesmith.codegen.trainium.isa.text import instruction_text
from tilesmith.codegen.trainium.isa.verification.report import column, fail
from tilesmith.codegen.trainium.timing.dependences import dependences, required_waits


@compiled
def _uncovered(
    n: int,
    queues: int,
    queue: Ints,
    count: Ints,
    wait_start: Ints,
    waits: Ints,
    need_start: Ints,
    needs: Ints,
    clock: Ints,
    previous: Ints,
) -> int:
    """The first place in `needs` that no semaphore covers, or -1.

    `clock[i * queues + q]`: how many instructions of queue q are known to be done when i starts.
    """
    for i in range(n):
        p = previous[i]
        for q in range(queues):
            clock[i * queues + q] = 0
            if p >= 0:
                clock[i * queues + q] = clock[p * queues + q]
        for w in range(wait_start[i], wait_start[i + 1]):
            d = waits[w]
            if d >= i:
                return int(need_start[i])
            for q in range(queues):
                here = i * queues + q
                clock[here] = max(clock[here], clock[d * queues + q])
            mine = i * queues + queue[d]
            clock[mine] = max(clock[mine], count[d])
        for w in range(need_start[i], need_start[i + 1]):
            d = needs[w]
            if clock[i * queues + queue[d]] < count[d]:
                return w
    return -1


def verify_synchronisation(stream: InstructionStream) -> None:
    """Check synchronisation: missing semaphores and exclusive ports.

    Raises:
        VerificationError: naming the instruction and what it should have waited for.
    """
    _ports(stream)
    need_start, needs = required_waits(stream, dependences(stream), prune=False)
    n = len(stream)
    previous = np.full(n, -1, dtype=np.int64)
    for number in np.unique(stream.rows["queue"]):
        mine = np.flatnonzero(stream.rows["queue"] == number)
        previous[mine[1:]] = mine[:-1]
    bad = _uncovered(
        n, QUEUES, stream.rows["queue"], stream.semaphores, stream.wait_start, stream.waits,
        need_start, needs, np.zeros(n * QUEUES, dtype=np.int64), previous,
    )  # fmt: skip
    if bad >= 0:
        row = int(np.searchsorted(need_start, bad, side="right")) - 1
        other = int(needs[bad])
        wrong = np.arange(n) == row
        fail(
            stream,
            wrong,
            lambda _: (
                f"touches what instruction {other} ({instruction_text(stream, other)}) may not "
                "have finished with; a semaphore is missing"
            ),
        )


def _ports(stream: InstructionStream) -> None:
    """Engines that exclude each other on a memory hold its port when they touch it."""
    core, rows = stream.core, stream.rows
    touches = {space: np.zeros(len(stream), dtype=bool) for space in (Space.SBUF, Space.PSUM)}
    for operand in OPERANDS:
        found = column(stream, operand, "space")
        for space, mask in touches.items():
            mask |= found == space
    pairs = (
        (core.exclusive_sbuf, Space.SBUF, (1, 3), LOCK_SBUF, "vector and gpsimd"),
        (core.exclusive_psum, Space.PSUM, (1, 2), LOCK_PSUM, "vector and scalar"),
    )
    for exclusive, space, engines, bit, names in pairs:
        if exclusive:
            wrong = touches[space] & np.isin(rows["queue"], engines) & ((rows["lock"] & bit) == 0)
            fail(
                stream,
                wrong,
                lambda _, s=space, e=names: (  # type: ignore[misc]
                    f"uses {s.name} without holding its port, which {e} exclude each other from"
                ),
            )
