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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host import host_target
from tilesmith.codegen.llvm.ir import Module
from tilesmith.codegen.llvm.threads import barrier_function
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.memory import aligned_bytes
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


@dataclass(frozen=True)
class Call:
    """One kernel call: the address of its function, and of each argument in order (0: none)."""

    function: int
    arguments: tuple[int, ...]


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
        calls: Sequence[Call],
        threads: int = 1,
        shared_bytes: int = 0,
        local_bytes: int = 0,
        keep: Any = None,
    ) -> None:
        self._arguments = [np.array(call.arguments, dtype=np.uint64) for call in calls]
        pairs = [(c.function, a.ctypes.data) for c, a in zip(calls, self._arguments, strict=True)]
        self._table: NDArray[np.uint64] = np.array(pairs, dtype=np.uint64)
        self._barrier = aligned_bytes(128)
        self._shared = aligned_bytes(max(64, shared_bytes))
        self._locals = [aligned_bytes(max(64, local_bytes)) for _ in range(threads)]
        self._keep = keep
        fixed = (self._barrier.ctypes.data, self._shared.ctypes.data)
        self._threads = [
            (self._table.ctypes.data, len(calls), thread, threads, *fixed, local.ctypes.data)
            for thread, local in enumerate(self._locals)
        ]
        self._walk, self._engine = _walker()

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


@cache
def _walker() -> tuple[Any, Any]:
    """The native loop over a table of calls, and the JIT that holds its code."""
    target = host_target()
    module = Module("driver", target.text("isa.triple"))
    barrier_function(module)
    code = toolchain.emit_object(f"{module}\n{_WALK_TEXT}", target)
    jit = llvm.create_lljit_compiler(
        toolchain.machine(target), use_jit_link=False, suppress_errors=False
    )
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    library = builder.export_symbol("walk").link(jit, "driver")
    return _WALK(library["walk"]), (jit, library)
