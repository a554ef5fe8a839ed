"""Runs a sequence of kernels by one foreign call a thread, whatever their number.

All kernels share a signature (see `codegen.llvm.emitter`), so a program is a table of (function,
arguments) pairs walked by a small native loop. With several threads each walks the same table, and
they meet at a barrier wherever one may read what another wrote: around every kernel that several
run, not between kernels that one runs alone (`codegen.native.team` has the threads).

Invariants: the tables keep everything they point at alive; a program is run by one caller at a
time.
"""

import atexit
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.compiled.routines import joined
from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.llvm.text.ir import Module
from tilesmith.codegen.llvm.threads import BARRIER_BYTES, WORD, barrier_function
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs import team, walking
from tilesmith.codegen.native.programs.team import Teams, set_rounds
from tilesmith.codegen.native.programs.walking import ROW_BYTES

_PERFORM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

ALL = 1 << 30
"""As many threads as there are."""


@dataclass(frozen=True)
class KernelCall:
    """One kernel call: the address of its function, and of each argument in order (0: none), and
    how many threads at most make it."""

    function: int
    arguments: tuple[int, ...]
    threads: int = ALL


@dataclass(frozen=True)
class MemoryMove:
    """Copies `nbytes` between addresses, each moved on by its step times what `counter` (an
    address, 0: none) holds."""

    target: int
    source: int
    nbytes: int
    target_step: int = 0
    source_step: int = 0
    counter: int = 0


@dataclass(frozen=True)
class Repeat:
    """Runs calls `trips` times, or as often as the int64 at `limit` says if that is less, as long
    as the byte at `test` is not 0 (addresses, 0: none); the number goes to `counter`."""

    calls: "tuple[AnyCall, ...]"
    trips: int
    limit: int
    test: int
    counter: int


@dataclass(frozen=True)
class Branch:
    """Runs the first calls if the byte at the address `test` is not 0, else the second."""

    test: int
    calls: "tuple[tuple[AnyCall, ...], tuple[AnyCall, ...]]"


AnyCall = KernelCall | MemoryMove | Repeat | Branch


def users(call: AnyCall) -> int:
    """How many threads at most take part in a call."""
    match call:
        case KernelCall():
            return call.threads
        case MemoryMove():
            return 1
        case Repeat(calls):
            inner = calls
        case Branch(_, (first, second)):
            inner = (*first, *second)
    return ALL if any(users(one) > 1 for one in inner) else 1


class _Tables:
    """Calls as memory that native loops walk over: tables of functions and arguments.

    Args:
        addresses: of the functions that run what is no kernel.

    Attributes:
        rows: the call at each row of a table, by the row's address.
    """

    def __init__(self, addresses: Mapping[str, int]) -> None:
        self._addresses = addresses
        self._kept: list[NDArray[np.int64]] = []
        self.rows: dict[int, AnyCall] = {}
        self.arguments: list[NDArray[np.int64]] = []
        """Of kernels, the addresses they are called with."""

    def table(self, calls: Sequence[AnyCall], *, inside: bool = True) -> tuple[int, int]:
        """Address and length of a table; `inside` another, its threads meet at the end."""
        rows: list[int] = []
        threads = [*map(users, calls), ALL if inside else 1]
        for number, call in enumerate(calls):
            meet = threads[number] > 1 or threads[number + 1] > 1
            last = number + 1 == len(calls)
            meet = max(threads) > 1 if last and inside else meet and not last
            rows += [*self._pair(call), threads[number], int(meet)]
        start = self._memory(rows)
        self.rows |= {start + ROW_BYTES * number: call for number, call in enumerate(calls)}
        return start, len(calls)

    def _pair(self, call: AnyCall) -> tuple[int, int]:
        match call:
            case KernelCall(function, arguments):
                address = self._memory(arguments)
                self.arguments.append(self._kept[-1])
                return function, address
            case MemoryMove():
                name, numbers = "move", tuple(vars(call).values())
            case Repeat(calls):
                fields = (call.trips, call.limit, call.test, call.counter)
                name, numbers = "repeat", (*self.table(calls), *fields)
            case Branch(test, (first, second)):
                name, numbers = "branch", (test, *self.table(first), *self.table(second))
        return self._addresses[name], self._memory(numbers)

    def _memory(self, numbers: Sequence[int]) -> int:
        self._kept.append(np.array([*numbers, 0], dtype=np.int64))
        return int(self._kept[-1].ctypes.data)


class NativeProgram:
    """Kernel calls in order, ready to run.

    Args:
        calls: what to run.
        threads: how many threads walk the calls together.
        shared_bytes, local_bytes: the largest workspaces any of the kernels asks for.
        keep: objects the addresses belong to.
    """

    def __init__(
        self,
        calls: Sequence[AnyCall],
        threads: int = 1,
        shared_bytes: int = 0,
        local_bytes: int = 0,
        keep: Any = None,
    ) -> None:
        self._driver = driver = _driver()
        self._tables = _Tables(self._functions())
        table = self._table(calls)
        self._threads = min(threads, max(map(users, calls), default=1))
        self._barrier = aligned_bytes(2 * BARRIER_BYTES)
        for start in (0, BARRIER_BYTES):
            set_rounds(self._barrier, start + WORD, driver.teams.rounds)
        self._shared = aligned_bytes(max(64, shared_bytes))
        self._keep = keep
        fixed = (self._barrier.ctypes.data, self._shared.ctypes.data)
        places = self._local_places(max(64, local_bytes))
        self._program = np.array([*table, *fixed, *places], dtype=np.int64)
        self._address = int(self._program.ctypes.data)

    def _functions(self) -> Mapping[str, int]:
        """Addresses of what runs moves, loops and branches."""
        return self._driver.addresses

    def _table(self, calls: Sequence[AnyCall]) -> tuple[int, int]:
        """Address and length of the table that is walked."""
        return self._tables.table(calls, inside=False)

    def _local_places(self, nbytes: int) -> list[int]:
        """Addresses of workspaces of so many bytes, one for each thread."""
        self._locals = [aligned_bytes(nbytes) for _ in range(self._threads)]
        return [int(local.ctypes.data) for local in self._locals]

    def __call__(self) -> None:
        self.run()

    def movable(self, start: int, stop: int) -> Callable[[int], None]:
        """What moves memory that kernels are called with: from then on they are called with the
        same places of memory that begins at the address it is given.

        Args:
            start, stop: addresses the memory lies between, as it was when the program was made.
        """
        places = [
            (array, number, int(address) - start)
            for array in self._tables.arguments
            for number, address in enumerate(array)
            if start <= address < stop
        ]

        def move(address: int) -> None:
            for array, number, distance in places:
                array[number] = address + distance

        return move

    def run(self) -> None:
        """Run every call, in order, to the end.

        Programs of several threads that are run at once have the cores one after another, where
        there are not enough for all of them (`codegen.native.team.Teams`).
        """
        driver, threads = self._driver, self._threads
        if threads > 1:
            threads = driver.teams.fitting(threads)
        if threads == 1:
            driver.perform(self._address, 0, 1)
        else:
            driver.teams.run(threads, self._address)


@dataclass(frozen=True)
class _Driver:
    """The native loop over a table of calls, the threads that walk it, the addresses of functions
    that run tables inside tables, and what holds their code."""

    perform: Any
    teams: Teams
    addresses: dict[str, int]
    keep: Any


@cache
def _driver() -> _Driver:
    """The driver of this process."""
    target = host_target()
    names = ("perform", "move", "repeat", "branch", *team.NAMES)
    key = toolchain.content_key(_sources(), target)
    code = object_cache.load(key)
    if code is None:
        module = Module("driver", target.text("isa.triple"))
        barrier_function(module)
        text = joined(str(module), walking.plain_text(), team.text())
        object_cache.store(key, code := toolchain.emit_object(text, target))
    addresses, keep = toolchain.load(code, target, "driver", names)
    teams = Teams(team.Functions.at(addresses))
    atexit.register(_leave, teams, os.getpid())
    return _Driver(_PERFORM(addresses["perform"]), teams, addresses, keep)


def _sources() -> str:
    """All that the driver's text is made from: writing the text takes longer than reading these."""
    here = Path(__file__).parent
    folders = here, here.parents[1] / "compiled", here.parents[1] / "llvm" / "text"
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    files.append(here.parents[1] / "llvm" / "threads.py")
    return "driver" + "".join(file.read_text(encoding="utf-8") for file in files)


def _leave(teams: Teams, process: int) -> None:
    """Before the code is gone; a forked child has none of its parent's threads."""
    if os.getpid() == process:
        teams.end()


def _start_again() -> None:
    """In a forked child."""
    if _driver.cache_info().currsize:
        _driver().teams.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
