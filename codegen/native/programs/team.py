"""Threads that run programs together: they wait in native code, and never hold the interpreter.

Waking a thread of Python takes the interpreter's lock and some ten microseconds, more than many
programs run. A worker here enters `serve` once and stays: it looks for work for a while (`LOOK_S`),
then sleeps until there is some. The caller of `run` is thread 0.

Memory of a team: a word that counts programs and, on lines of their own, {program, threads} and the
barrier at which everyone meets when a program is done. Invariants: a team runs one program at a
time, with all its threads; it ends before the code that it runs is gone; a forked child has none.
"""

import ctypes
import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    atomic_load32,
    load32,
    load64,
    routine,
    routines_text,
    store64,
)
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.llvm.threads import BARRIER_BYTES, MOST_ROUNDS, ROUNDS, WORD
from tilesmith.search_space.support.errors import JobError

LOOK_S = 2e-4
"""Seconds that a thread looks for what it waits for before it sleeps: some times what it takes to
sleep and be woken, so that threads which have cores to themselves never sleep between kernels."""

_FORGET_S = 0.02
"""How old the knowledge of which cores there are may get."""

_PROBE = 512
"""Looks that are timed together; more in a row make some virtual machines stop the core."""

_PROGRAM, _THREADS, _MEETING = 64, 72, 128

await_word = External("await", "void (ptr, i32)")
announce = External("announce", "void (ptr)")
look = External("look", "i1 (ptr, i32, i64)")
barrier = External("barrier", "void (ptr, i64)")
perform = External("perform", "void (ptr, i64, i64)")


@routine
def serve(team: Address, thread: int, unused: Address) -> None:
    """What a worker does: wait for a program, run it with the others, until there is none."""
    old = 0
    while True:
        await_word(team, old)
        old = atomic_load32(team)
        program = load64(team + _PROGRAM)
        threads = load64(team + _THREADS)
        if program == 0:
            return
        perform(program, thread, threads)
        barrier(team + _MEETING, threads)


@routine
def together(team: Address, threads: int, program: Address) -> None:
    """Run a program with all threads of a team; none: they end."""
    store64(team + _PROGRAM, program)
    store64(team + _THREADS, threads)
    announce(team)
    if program != 0:
        perform(program, 0, threads)
        barrier(team + _MEETING, threads)


@routine
def probe(word: Address, rounds: int, unused: Address) -> None:
    """Read a word `rounds` times, as a waiting thread does."""
    look(word, load32(word), rounds)


def text() -> str:
    """The three; beside them belong `codegen.llvm.threads` and `perform(program, thread,
    threads)`."""
    return routines_text((serve, together, probe), exported={name: name for name in NAMES})


NAMES = ("serve", "together", "probe")

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def set_rounds(memory: NDArray[np.uint8], word: int, rounds: int) -> None:
    """Set how often threads that wait for the word at byte `word` read it before they sleep."""
    for start in (word + ROUNDS, word + MOST_ROUNDS):
        memory[start : start + 8].view(np.int64)[0] = rounds


@dataclass(frozen=True)
class Functions:
    """The functions of `text`, loaded."""

    serve: Any
    together: Any
    probe: Any

    @classmethod
    def at(cls, addresses: Mapping[str, int]) -> "Functions":
        return cls(*(_FUNCTION(addresses[name]) for name in NAMES))

    def rounds(self) -> int:
        """How often a thread looks in `LOOK_S`, measured now."""
        word, best = aligned_bytes(64), float("inf")
        for _ in range(8):
            start = time.perf_counter()
            self.probe(word.ctypes.data, _PROBE, None)
            best = min(best, time.perf_counter() - start)
        return max(1, int(LOOK_S / max(best, 1e-9) * _PROBE))


@cache
def _sched_getcpu() -> Any:
    """The system's function, None where there is none."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)


def _core() -> int | None:
    """The core that the calling thread is on; None where the system does not tell."""
    function = _sched_getcpu()
    return None if function is None else int(function())


class Team:
    """Worker threads that wait for programs; the caller is thread 0.

    Raises (on construction):
        JobError: the system does not give so many threads.
    """

    def __init__(self, threads: int, functions: Functions, rounds: int) -> None:
        self.threads = threads
        self._functions = functions
        self._memory = aligned_bytes(_MEETING + BARRIER_BYTES)
        self._beside: int | None = None
        self._displaced = True
        set_rounds(self._memory, 0, rounds)
        set_rounds(self._memory, _MEETING + WORD, rounds)
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        for number in range(1, threads):
            worker = threading.Thread(target=self._serve, args=(number,), daemon=True)
            try:
                worker.start()
            except RuntimeError as error:
                self._end()
                raise JobError(
                    f"only {number} of {threads} threads could be started; use fewer"
                ) from error
            self._workers.append(worker)

    def run(self, program: int) -> None:
        """Perform a program (its address) on every thread; returns when all are done."""
        with self._lock:
            core = _core()
            if core != self._beside or self._displaced:
                self._place(core)
            self._functions.together(self._memory.ctypes.data, self.threads, program)

    def displaced(self) -> None:
        """Its threads may be on other cores than before."""
        self._displaced = True

    def _place(self, core: int | None) -> None:
        """Let workers run where the caller may, but on its own core where there is hardly another:
        there they would be woken, often, and wait until the caller sleeps."""
        self._beside, self._displaced = core, False
        if core is None:
            return
        cores = os.sched_getaffinity(0)
        if len(cores) < self.threads:
            return
        wanted = cores - {core} if len(cores) < 2 * self.threads else cores
        for worker in self._workers:
            with suppress(OSError):  # not allowed to, or gone
                os.sched_setaffinity(worker.native_id or 0, wanted)

    def end(self) -> None:
        """End the worker threads; return when they have ended."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._functions.together(self._memory.ctypes.data, self.threads, None)
        for worker in self._workers:
            worker.join()

    def _serve(self, number: int) -> None:
        self._functions.serve(self._memory.ctypes.data, number, None)

    def cores(self) -> frozenset[int]:
        """Return the cores that the workers may run on."""
        cpus: frozenset[int] = frozenset()
        for worker in self._workers:
            with suppress(OSError):
                cpus |= os.sched_getaffinity(worker.native_id or 0)
        return cpus


def _cores() -> frozenset[int]:
    """Those that the calling thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


class Teams:
    """The teams of a process, for as many threads as there are cores.

    Programs of so many threads that are run at once have a team each, as long as there are cores
    for all of them, and go one after another beyond that: threads that look for each other from
    the same cores would only wait.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.rounds = functions.rounds()
        self._looked = float("-inf")
        self._cores: frozenset[int] = frozenset()
        self.forget()

    def run(self, threads: int, program: int) -> None:
        """Run the program at an address on a free team of `threads` threads."""
        free = self._free[threads]
        try:
            team = free.pop()
        except IndexError:
            team = self._another(threads)
        try:
            team.run(program)
        finally:
            free.append(team)
            if self._waiting:
                with self._lock:
                    self._lock.notify_all()

    def of(self, threads: int) -> Sequence[Team]:
        """Return the teams of `threads` threads that exist."""
        return tuple(self._teams[threads])

    def _another(self, threads: int) -> Team:
        """A team that nobody else uses: one more, or the first that is given back."""
        with self._lock:
            self._waiting += 1  # before the list is looked at: who gives back later sees it
            try:
                while True:
                    with suppress(IndexError):
                        return self._free[threads].pop()
                    if len(self._teams[threads]) < max(1, len(self._cores) // threads):
                        team = Team(threads, self._functions, self.rounds)
                        self._teams[threads].append(team)
                        return team
                    self._lock.wait()
            finally:
                self._waiting -= 1

    def fitting(self, threads: int) -> int:
        """How many of the threads have a core for themselves, at least 1."""
        now = time.monotonic()
        if now - self._looked > _FORGET_S:
            self._looked, self._cores = now, _cores()
            for teams in list(self._teams.values()):
                for team in teams:  # others may have bound its threads meanwhile
                    team.displaced()
        number = len(self._cores)
        if number < threads and threads in self._teams:  # workers may have cores of their own
            number = len(self._cores.union(*(team.cores() for team in self._teams[threads])))
        return max(1, min(threads, number))

    def forget(self) -> None:
        """Start without teams, at first and in a forked child, which has none of the parent's
        threads."""
        self._teams: defaultdict[int, list[Team]] = defaultdict(list)
        self._free: defaultdict[int, list[Team]] = defaultdict(list)
        self._lock = threading.Condition()
        self._waiting = 0

    def end(self) -> None:
        """End all of them."""
        while self._teams:
            for team in self._teams.popitem()[1]:
                team.end()
        self._free.clear()
