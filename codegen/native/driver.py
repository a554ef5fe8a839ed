"""Runs a sequence of kernels by one foreign call a thread, whatever their number.

All kernels share a signature (see `codegen.llvm.emitter`), so a program is a table of (function,
arguments) pairs walked by a small native loop; with several threads, each walks the same table and
they meet at a barrier after every kernel. Worker threads are Python threads that leave the
interpreter for the whole program (ctypes releases its lock), so Python's cost is paid once a run.

Invariants: the tables keep everything they point at alive; a program is run by one caller at a
time.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host import host_target
from tilesmith.codegen.llvm.ir import Module
from tilesmith.codegen.llvm.threads import barrier_function
from tilesmith.codegen.memory import aligned_bytes
from tilesmith.codegen.native import toolchain
from tilesmith.search_space.errors import JobError

_WALK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 3])

_WALK_TEXT = """
define void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local) {
entry:
  %end = getelementptr [2 x ptr], ptr %table, i64 %count
  br label %check
check:
  %call = phi ptr [ %table, %entry ], [ %next, %step ]
  %more = icmp ne ptr %call, %end
  br i1 %more, label %body, label %done
body:
  %kernel = load ptr, ptr %call
  %where = getelementptr ptr, ptr %call, i64 1
  %arguments = load ptr, ptr %where
  call void %kernel(ptr %arguments, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                    ptr %local)
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %meet, label %step
meet:
  call void @barrier(ptr %barrier, i64 %threads)
  br label %step
step:
  %next = getelementptr [2 x ptr], ptr %call, i64 1
  br label %check
done:
  ret void
}
"""

_SIGNATURE = "(ptr %a, i64 %thread, i64 %threads, ptr %barrier, ptr %shared, ptr %local)"
_WALKED = "i64 %thread, i64 %threads, ptr %barrier, ptr %shared, ptr %local)"


def _fields(*kinds: str) -> str:
    """Loads of the arguments %a0, %a1, ... of a call."""
    return "".join(
        f"  %p{n} = getelementptr i64, ptr %a, i64 {n}\n  %a{n} = load {kind}, ptr %p{n}\n"
        for n, kind in enumerate(kinds)
    )


_CONTROL_TEXT = f"""
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define void @move{_SIGNATURE} {{
entry:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %mine, label %done
mine:
{_fields("ptr", "ptr", "i64", "i64", "i64", "ptr")}
  %counted = icmp ne ptr %a5, null
  br i1 %counted, label %count, label %copy
count:
  %now = load i64, ptr %a5
  br label %copy
copy:
  %i = phi i64 [ 0, %mine ], [ %now, %count ]
  %target.by = mul i64 %i, %a3
  %source.by = mul i64 %i, %a4
  %target = getelementptr i8, ptr %a0, i64 %target.by
  %source = getelementptr i8, ptr %a1, i64 %source.by
  call void @llvm.memmove.p0.p0.i64(ptr %target, ptr %source, i64 %a2, i1 false)
  br label %done
done:
  ret void
}}

define void @repeat{_SIGNATURE} {{
entry:
{_fields("ptr", "i64", "i64", "ptr", "ptr", "ptr")}
  %limited = icmp ne ptr %a3, null
  br i1 %limited, label %limit, label %start
limit:
  %given = load i64, ptr %a3
  %less = icmp slt i64 %given, %a2
  %least = select i1 %less, i64 %given, i64 %a2
  br label %start
start:
  %trips = phi i64 [ %a2, %entry ], [ %least, %limit ]
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %run ]
  %more = icmp slt i64 %i, %trips
  br i1 %more, label %ask, label %done
ask:
  %tested = icmp ne ptr %a4, null
  br i1 %tested, label %test, label %go
test:
  %flag = load i8, ptr %a4
  %set = icmp ne i8 %flag, 0
  br i1 %set, label %go, label %done
go:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %count, label %meet
count:
  store i64 %i, ptr %a5
  br label %meet
meet:
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %wait, label %run
wait:
  call void @barrier(ptr %barrier, i64 %threads)
  br label %run
run:
  call void @walk(ptr %a0, i64 %a1, {_WALKED}
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}

define void @branch{_SIGNATURE} {{
entry:
{_fields("ptr", "ptr", "i64", "ptr", "i64")}
  %flag = load i8, ptr %a0
  %set = icmp ne i8 %flag, 0
  %table = select i1 %set, ptr %a1, ptr %a3
  %count = select i1 %set, i64 %a2, i64 %a4
  call void @walk(ptr %table, i64 %count, {_WALKED}
  ret void
}}
"""
"""Functions of the kernels' signature that run tables of calls: in a table they are calls, too."""


@dataclass(frozen=True)
class Call:
    """One kernel call: the address of its function, and of each argument in order (0: none)."""

    function: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Move:
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

    calls: tuple[AnyCall, ...]
    trips: int
    limit: int
    test: int
    counter: int


@dataclass(frozen=True)
class Branch:
    """Runs the first calls if the byte at the address `test` is not 0, else the second."""

    test: int
    calls: tuple[tuple[AnyCall, ...], tuple[AnyCall, ...]]


AnyCall = Call | Move | Repeat | Branch


class _Tables:
    """Calls as memory that native loops walk over: tables of functions and arguments."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.int64]] = []
        self.arguments: list[NDArray[np.int64]] = []
        """Of kernels, the addresses they are called with."""

    def table(self, calls: Sequence[AnyCall]) -> tuple[int, int]:
        """Address and length of a table."""
        pairs = [self._pair(call) for call in calls]
        return self._memory([number for pair in pairs for number in pair]), len(calls)

    def _pair(self, call: AnyCall) -> tuple[int, int]:
        match call:
            case Call(function, arguments):
                address = self._memory(arguments)
                self.arguments.append(self._kept[-1])
                return function, address
            case Move():
                name, numbers = "move", tuple(vars(call).values())
            case Repeat(calls):
                fields = (call.trips, call.limit, call.test, call.counter)
                name, numbers = "repeat", (*self.table(calls), *fields)
            case Branch(test, (first, second)):
                name, numbers = "branch", (test, *self.table(first), *self.table(second))
        return _driver().addresses[name], self._memory(numbers)

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
        self._tables = _Tables()
        table = self._tables.table(calls)
        self._barrier = aligned_bytes(128)
        self._shared = aligned_bytes(max(64, shared_bytes))
        self._locals = [aligned_bytes(max(64, local_bytes)) for _ in range(threads)]
        self._keep = keep
        fixed = (self._barrier.ctypes.data, self._shared.ctypes.data)
        self._threads = [
            (*table, thread, threads, *fixed, local.ctypes.data)
            for thread, local in enumerate(self._locals)
        ]
        self._walk = _driver().walk

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
        """Run every call, in order, to the end."""
        if len(self._threads) == 1:
            self._run_as(0)
        else:
            _team(len(self._threads)).run(self._run_as)

    def _run_as(self, thread: int) -> None:
        self._walk(*self._threads[thread])


class Team:
    """Worker threads that wait for work; the caller is thread 0."""

    def __init__(self, threads: int) -> None:
        self._work: Any = None
        self._lock = threading.Lock()
        self._start = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._done = threading.Semaphore(0)
        for number, start in enumerate(self._start, start=1):
            thread = threading.Thread(target=self._serve, args=(number, start), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise JobError(
                    f"only {number} of {threads} threads could be started; use fewer"
                ) from error

    def run(self, work: Any) -> None:
        """Call `work(thread)` on every thread; returns when all have."""
        with self._lock:
            self._work = work
            for start in self._start:
                start.release()
            work(0)
            for _ in self._start:
                self._done.acquire()
            self._work = None

    def _serve(self, number: int, start: threading.Semaphore) -> None:
        while True:
            start.acquire()
            self._work(number)
            self._done.release()


@cache
def _team(threads: int) -> Team:
    return Team(threads)


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_team.cache_clear)


@dataclass(frozen=True)
class _Driver:
    """The native loop over a table of calls, the addresses of functions that run tables inside
    tables, and what holds their code."""

    walk: Any
    addresses: dict[str, int]
    keep: Any


@cache
def _driver() -> _Driver:
    """The driver of this process."""
    target = host_target()
    module = Module("driver", target.text("isa.triple"))
    barrier_function(module)
    code = toolchain.emit_object(f"{module}\n{_WALK_TEXT}\n{_CONTROL_TEXT}", target)
    jit = llvm.create_lljit_compiler(
        toolchain.machine(target), use_jit_link=False, suppress_errors=False
    )
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    names = ("walk", "move", "repeat", "branch")
    for name in names:
        builder = builder.export_symbol(name)
    library = builder.link(jit, "driver")
    return _Driver(_WALK(library["walk"]), {n: library[n] for n in names}, (jit, library))
