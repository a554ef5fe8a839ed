"""The native loops over tables of calls, plain and timed (`codegen.native.programs.driver`).

A row of a table is {function, arguments, threads, meet}: so many threads make the call, and then
all meet if they have to. Those that are fewer than all have a barrier of their own. A program is
{table, rows, barriers, shared workspace, local workspace of each thread}.

`move`, `repeat` and `branch` have the kernels' signature and run tables: in a table they are calls,
too. Timed (`TIMED`), the same code also notes when (`codegen.native.programs.timing`): iterations
go through `sampled` and branches through `looked`, which choose between both walks. A loop keeps
three numbers for that: how many iterations are let pass, how many were, one in how many is noted.
Beside these stands `barrier` of `codegen.llvm.threads`.
"""

from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    load8,
    load64,
    room,
    routine,
    routines_text,
    store64,
)
from tilesmith.codegen.llvm.threads import BARRIER_BYTES

ROW_BYTES = 32
"""Of a row of a table."""

RAN, MET, BEGUN, PASSED = 0, 1, 2, 3
"""Kinds of notes: a call is over; all threads met after it; a table is begun; iterations of a table
are over that nobody looked at."""

TIMED = 0

EVERY_AT, ENTRIES_AT, QUIET_AT = -40, -32, -24
"""Before a thread's local workspace: one in how many iterations is noted, how many loops were
entered, whether nobody looks."""

barrier = External("barrier", "void (ptr, i64)")
kernel = External("", "void (ptr, i64, i64, ptr, ptr, ptr)")
memmove = External("llvm.memmove.p0.p0.i64", "void (ptr, ptr, i64, i1)")
note = External("note", "void (ptr, i64)")


@routine
def walk(
    table: Address, count: int, thread: int, threads: int, everyone: Address, shared: Address,
    local: Address,
) -> None:  # fmt: skip
    """Make the calls of a table; `everyone` is the barrier of all its threads."""
    if TIMED:
        note(local, table | BEGUN)
    call = table
    end = table + count * ROW_BYTES
    while call != end:
        wanted = load64(call + 16)
        users = min(wanted, threads)
        if thread < users:
            inside = everyone
            if wanted < threads:
                inside = everyone + BARRIER_BYTES
            kernel(load64(call), load64(call + 8), thread, users, inside, shared, local)
        if TIMED:
            note(local, call | RAN)
        if threads > 1 and load64(call + 24) != 0:
            barrier(everyone, threads)
            if TIMED:
                note(local, call | MET)
        call += ROW_BYTES


timed = walk.named("timed", TIMED=1)


@routine
def perform(program: Address, thread: int, threads: int) -> None:
    """Run a program."""
    local = load64(program + 32 + 8 * thread)
    shared = load64(program + 24)
    walk(load64(program), load64(program + 8), thread, threads, load64(program + 16), shared, local)


@routine
def move(
    a: Address, thread: int, threads: int, everyone: Address, shared: Address, local: Address
) -> None:
    """Arguments: target, source, bytes, their steps, and the counter that these are for."""
    if thread == 0:
        now = 0
        if load64(a + 40) != 0:
            now = load64(load64(a + 40))
        target = load64(a) + now * load64(a + 24)
        memmove(target, load64(a + 8) + now * load64(a + 32), load64(a + 16), 0)


@routine
def repeat(
    a: Address, thread: int, threads: int, everyone: Address, shared: Address, local: Address
) -> None:
    """Arguments: table, rows, trips, and where limit, test and counter are."""
    table = load64(a)
    rows = load64(a + 8)
    trips = load64(a + 16)
    if load64(a + 24) != 0:
        trips = min(load64(load64(a + 24)), trips)
    test = load64(a + 32)
    if TIMED:
        state = room(24)
        entered(state, trips, local)
    for i in range(trips):
        if test != 0 and load8(test) == 0:
            break
        if thread == 0:
            store64(load64(a + 40), i)
        if threads > 1:
            barrier(everyone, threads)
        if TIMED:
            sampled(table, rows, thread, threads, everyone, shared, local, state)
        else:
            walk(table, rows, thread, threads, everyone, shared, local)
    if TIMED:
        left(table, state, local)


@routine
def branch(
    a: Address, thread: int, threads: int, everyone: Address, shared: Address, local: Address
) -> None:
    """Arguments: where the test is, and table and rows of either side."""
    side = a + 24
    if load8(load64(a)) != 0:
        side = a + 8
    if TIMED:
        looked(load64(side), load64(side + 8), thread, threads, everyone, shared, local)
    else:
        walk(load64(side), load64(side + 8), thread, threads, everyone, shared, local)


@routine
def begin(
    a: Address, thread: int, threads: int, everyone: Address, shared: Address, local: Address
) -> None:
    """Where a timed run begins; arguments: table and rows."""
    timed(load64(a), load64(a + 8), thread, threads, everyone, shared, local)


@routine
def entered(state: Address, trips: int, local: Address) -> None:
    """A loop begins to count at another place at every entry."""
    n = max(min(trips, load64(local + EVERY_AT)), 1)
    entries = load64(local + ENTRIES_AT)
    store64(state, ((entries * 2654435761 >> 16) & 65535) % n)
    store64(local + ENTRIES_AT, entries + 1)
    store64(state + 8, 0)
    store64(state + 16, n)


@routine
def left(table: Address, state: Address, local: Address) -> None:
    """Note how many iterations passed since one was noted."""
    passed = load64(state + 8)
    if passed != 0:
        note(local, table | PASSED | passed << 48)
        store64(state + 8, 0)


@routine
def sampled(
    table: Address, rows: int, thread: int, threads: int, everyone: Address, shared: Address,
    local: Address, state: Address,
) -> None:  # fmt: skip
    """One iteration, noted if it is its turn; inside those that are not, nobody looks."""
    if load64(local + QUIET_AT) != 0:
        walk(table, rows, thread, threads, everyone, shared, local)
        return
    wait = load64(state)
    if wait == 0:
        left(table, state, local)
        store64(state, load64(state + 16) - 1)
        timed(table, rows, thread, threads, everyone, shared, local)
        return
    store64(state, wait - 1)
    store64(state + 8, load64(state + 8) + 1)
    store64(local + QUIET_AT, 1)
    walk(table, rows, thread, threads, everyone, shared, local)
    store64(local + QUIET_AT, 0)


@routine
def looked(
    table: Address, rows: int, thread: int, threads: int, everyone: Address, shared: Address,
    local: Address,
) -> None:  # fmt: skip
    """Run one side of a branch; time it unless the surrounding iteration is not sampled."""
    if load64(local + QUIET_AT) != 0:
        walk(table, rows, thread, threads, everyone, shared, local)
    else:
        timed(table, rows, thread, threads, everyone, shared, local)


def plain_text() -> str:
    """`walk`, `perform`, and what runs tables in tables."""
    visible = {name: name for name in ("perform", "move", "repeat", "branch")}
    return routines_text((walk, perform, move, repeat, branch), exported=visible)


def timed_text() -> str:
    """`begin`, and what runs tables in tables, timed; `note` is the caller's."""
    visible = {name: name for name in ("begin", "move", "repeat", "branch")}
    control = (routine.named(routine.symbol, TIMED=1) for routine in (move, repeat, branch))
    every = (walk, timed, *control, begin, entered, left, sampled, looked)
    return routines_text(every, exported=visible)
