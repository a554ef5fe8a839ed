"""How a workspace gets threads that help its caller, and lets them go.

`codegen.native.programs.team` has what they do: wait, and run programs together. Here they are the
system's threads instead of Python's: started with the workspace, joined when it ends. As there,
they are kept off the caller's core (`place`) where there is hardly another: woken there, they would
wait until it sleeps.
"""

from tilesmith.capabilities.c_library.code.plan import (
    BARRIERS_AT,
    BESIDE_AT,
    PROCESS_AT,
    SLOT_BYTES,
    SLOTS_AT,
    TEAM_AT,
    THREADS_AT,
    LibraryPlan,
)
from tilesmith.capabilities.c_library.code.status import THREADS
from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    load32,
    load64,
    room,
    routine,
    routines_text,
    store32,
    store64,
)
from tilesmith.codegen.llvm.threads import BARRIER_BYTES, MOST_ROUNDS, ROUNDS, WORD
from tilesmith.codegen.native.programs.team import LOOK_S, probe, serve, together

TEAM, ALONE = 2, 0
"""How many threads take part at most; whether that is one. Of a plan."""

MASK_BYTES = 128
"""Of a set of cores."""

MEETING_AT = TEAM_AT + 128
PROBE = 512
LOOKS = int(LOOK_S * 1e9 * PROBE)

getpid = External("getpid", "i32 ()")
pthread_create = External("pthread_create", "i32 (ptr, ptr, ptr, ptr)")
pthread_join = External("pthread_join", "i32 (ptr, ptr)")
clock_gettime = External("clock_gettime", "i32 (i32, ptr)")
sched_getaffinity = External("sched_getaffinity", "i32 (i32, i64, ptr)")
sched_getcpu = External("sched_getcpu", "i32 ()")
pthread_setaffinity_np = External("pthread_setaffinity_np", "i32 (ptr, i64, ptr)")
ctpop = External("llvm.ctpop.i64", "i64 (i64)")
memset = External("llvm.memset.p0.i64", "void (ptr, i8, i64, i1)")


@routine
def now() -> int:
    """Nanoseconds of a clock that does not jump."""
    time = room(16)
    clock_gettime(1, time)  # CLOCK_MONOTONIC
    return load64(time) * 1000000000 + load64(time + 8)


@routine
def rounds_here(word: Address) -> int:
    """How often a thread looks in `LOOK_S`, measured."""
    best = 1000000000
    for _ in range(8):
        begin = now()
        probe(word, PROBE, 0)
        best = min(best, now() - begin)
    return LOOKS // (best + 1) + 1


@routine
def cores(mask: Address) -> int:
    """The cores that this process may use, and how many they are."""
    memset(mask, 0, MASK_BYTES, 0)
    sched_getaffinity(0, MASK_BYTES, mask)
    total = 0
    for number in range(MASK_BYTES // 8):
        total += ctpop(load64(mask + 8 * number))
    if total == 0:  # not known
        return TEAM
    return total


@routine
def place(workspace: Address, threads: int) -> None:
    """Keep the helpers off the caller's core, if it is another than before."""
    core = sched_getcpu()
    if core + 1 == load32(workspace + BESIDE_AT):
        return
    store32(workspace + BESIDE_AT, core + 1)
    if core < 0 or core >= 1024:
        return
    mask = room(128)
    number = cores(mask)
    if number < threads:
        return
    if number < 2 * threads:
        word = mask + 8 * (core >> 6)
        store64(word, load64(word) & (-1 ^ (1 << (core & 63))))
    for thread in range(1, threads):
        handle = load64(workspace + SLOTS_AT + SLOT_BYTES * thread)
        pthread_setaffinity_np(handle, MASK_BYTES, mask)


@routine
def worker(slot: Address) -> Address:
    """What a thread does: its slot is {handle, workspace, number}."""
    serve(load64(slot + 8) + TEAM_AT, load64(slot + 16), 0)
    return 0


@routine
def set_rounds(word: Address, rounds: int) -> None:
    store64(word + ROUNDS, rounds)
    store64(word + MOST_ROUNDS, rounds)


@routine
def start(workspace: Address, asked: int) -> Int32:
    """Start the helpers of a workspace; 0 are asked for: as many as there are cores."""
    if ALONE:
        store64(workspace + THREADS_AT, 1)
        return 0
    wish = asked
    if asked == 0:
        wish = cores(room(128))
    threads = min(wish, TEAM)
    team = workspace + TEAM_AT
    rounds = rounds_here(team)
    set_rounds(team, rounds)
    set_rounds(workspace + MEETING_AT + WORD, rounds)
    set_rounds(workspace + BARRIERS_AT + WORD, rounds)
    set_rounds(workspace + BARRIERS_AT + BARRIER_BYTES + WORD, rounds)
    store32(workspace + PROCESS_AT, getpid())
    for number in range(1, threads):
        slot = workspace + SLOTS_AT + SLOT_BYTES * number
        store64(slot + 8, workspace)
        store64(slot + 16, number)
        if pthread_create(slot, 0, worker, slot) != 0:
            stop(workspace, number)
            return THREADS
    store64(workspace + THREADS_AT, threads)
    return 0


@routine
def elsewhere(workspace: Address, threads: int) -> Int32:
    """Whether a workspace's threads are another process's."""
    return int(threads > 1 and load32(workspace + PROCESS_AT) != getpid())


@routine
def stop(workspace: Address, threads: int) -> None:
    """End so many threads of a workspace, its caller among them."""
    if ALONE:
        return
    if elsewhere(workspace, threads) != 0:
        return
    together(workspace + TEAM_AT, threads, 0)
    for number in range(1, threads):
        pthread_join(load64(workspace + SLOTS_AT + SLOT_BYTES * number), 0)


def threads(plan: LibraryPlan) -> str:
    """How a workspace gets its threads, and lets them go."""
    both = (start, stop)
    if plan.team == 1:
        return routines_text(both, {"ALONE": 1})
    beside = (now, rounds_here, cores, place, worker, set_rounds, elsewhere)
    return routines_text((*both, *beside), {"TEAM": plan.team})
