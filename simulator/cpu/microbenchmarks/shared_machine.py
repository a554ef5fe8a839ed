"""Microbenchmarks of what threads share: bandwidth of L3 and memory, and what it takes to meet.

`together` times calls on threads of their own that start at once; `benchmarks/limits.py` measures
with it, too.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_config, compile_program
from tilesmith.codegen.native.programs.driver import KernelCall, NativeProgram
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.workload import Workload

CHAINS = 8
"""Accumulators of the reading loop: enough to hide the latency of adding."""

MOST = 16
"""Threads that are tried together at most."""

_MEETINGS = 400
"""Kernels of the chain that meeting is timed with."""

_ENOUGH = 256 << 20
"""Bytes that are beyond the caches that one processor's cores share."""

_FETCHED = 2.0
"""Meetings' worth of what fetching the others' results costs besides (assumed)."""


def between_threads(target: Target, hertz: float) -> dict[str, float]:
    """Facts `l3.cores`, `memory.cores` (all cores' bandwidth over one's) and `barrier.cycles`.

    Empty where this process may use one core only.
    """
    threads = min(MOST, _cores())
    if threads == 1:
        return {}
    sizes = [target.integer(f"l{level}.kib") * 1024 for level in (1, 2, 3)]
    facts = {}
    for name, size in (
        ("l3", max(2 * sizes[1], min(4 * sizes[1], sizes[2] // (2 * threads)))),
        ("memory", beyond_caches(sizes[2]) // threads),
    ):
        loops = [reading(target, size)[0] for _ in range(threads)]
        cores_worth = threads * together(loops[:1]) / together(loops)
        facts[f"{name}.cores"] = round(min(float(threads), max(1.0, cores_worth)), 2)
    facts["barrier.cycles"] = round(max(1.0, _meeting(target) * hertz * _FETCHED))
    return facts


def beyond_caches(last: int) -> int:
    """Bytes of which a last cache of `last` bytes holds next to nothing while they are read again
    and again, in order. Virtual machines call the cache of all their neighbours theirs; twice that
    is enough, and takes seconds to fill.
    """
    return max(2 * last, min(4 * last, _ENOUGH))


def knows_threads(values: Mapping[str, float]) -> bool:
    """Whether a calibration has these facts, as far as they can be measured here."""
    return "barrier.cycles" in values or _cores() == 1


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def together(calls: Sequence[Callable[[], None]], least_s: float = 0.1) -> float:
    """Seconds of one call of each, all at once on threads of their own; the best of five rounds.

    They are seconds of the slowest thread on its core: while it waits for one that a neighbour
    has, nothing is learnt about what threads share.
    """
    best = float("inf")
    calls[0]()
    start = time.perf_counter()
    calls[0]()
    repeats = max(1, int(least_s / 5 / max(time.perf_counter() - start, 1e-7)))
    taken: list[float] = []

    def work(call: Callable[[], None]) -> None:
        start = time.thread_time()
        for _ in range(repeats):
            call()
        taken.append(time.thread_time() - start)

    for _ in range(5):
        taken.clear()
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, max(taken) / repeats)
    return best


def _meeting(target: Target) -> float:
    """Seconds that a chain of tiny kernels takes more for each of them on two threads."""
    workload = Workload.parse("elementwise shape=4x16 expression=add(x0,x0)")
    kernel = compile_config(workload, target, default_of(workload, target))
    arrays = [aligned_empty((4, 16), np.dtype(np.float32)) for _ in range(_MEETINGS + 1)]
    places = [(a.ctypes.data, b.ctypes.data) for a, b in pairwise(arrays)]
    shared, local = kernel.code.shared_bytes, kernel.code.local_bytes
    seconds = []
    for threads in (1, 2):
        calls = [KernelCall(kernel.address, place) for place in places]
        run = NativeProgram(calls, threads, shared, local, keep=(kernel, arrays)).run
        best = float("inf")
        for _ in range(20):
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        seconds.append(best)
    return max(0.0, seconds[1] - seconds[0]) / _MEETINGS


def reading(target: Target, size: int) -> tuple[Callable[[], None], int]:
    """What reads about `size` bytes of its own in order, and how many they are."""
    lanes = vector_width(target)
    steps = max(1, size // (4 * lanes * CHAINS))
    step, chain, lane = axis("step", steps), axis("chain", CHAINS), axis("lane", lanes)
    element = load("x", step.var, chain.var, lane.var)
    total = Stage(
        "c", (chain, lane), call("multiply", element, load("y", lane.var)), (step,), "sum"
    )
    tensors = (Tensor("x", (steps, CHAINS, lanes)), Tensor("y", (lanes,)))
    schedule = Schedule(ComputeDefinition("read", tensors, (total,)))
    schedule = schedule.split("c", "chain", CHAINS, "once", "part")
    schedule = schedule.reorder("c", ("once", "step", "part", "lane"))
    schedule = schedule.unroll("c", "part").vectorize("c", "lane")
    schedule = schedule.cache_write("c", "register", "once")
    kernel = NativeKernel(compile_program(lower(schedule), target))
    data = aligned_empty((steps, CHAINS, lanes), np.dtype(np.float32))
    data[...] = 1.0
    ones = np.ones(lanes, np.float32)
    run = kernel.bind({"x": data, "y": ones, kernel.output.name: kernel.allocate_output()})
    return run, data.nbytes
