"""Programs that write down when each of their calls ran: the same walk, with a clock in it.

    timed walk       for each row of a table: make the call, note {row, ticks}; meet, note again
    notes            one list a thread, of 16 bytes each; times between notes are what rows took

What lies between a note and the one before it is what the later one names, so that the notes of a
thread add up to the time from its first to its last. Ordinary programs run none of this.

Of loops whose kernels take little more than a note every n-th iteration may be looked at
(`every`), one at least: the others run by the ordinary walk, and one note behind them says how many
they were. Where a loop begins to count is another place at every entry (a multiplicative hash of
how many entries there were), so that each has its turn.

A thread's list is found by its local workspace: {next place, end, notes that had no place, n, how
many loops were entered, whether nobody looks} stand in the line before it. Ticks are the
processor's time stamp counter (x86-64: Intel SDM volume 3, 18.17 "Time-Stamp Counter"; AArch64:
`CNTVCT_EL0`), which threads on all cores read alike; `Clock` says what they are in nanoseconds.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.llvm.text.ir import Module
from tilesmith.codegen.llvm.threads import barrier_function
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs import walking
from tilesmith.codegen.native.programs.driver import ALL, ROW_BYTES, AnyCall, NativeProgram
from tilesmith.search_space.hardware.target import Target

RAN, MET, BEGUN, PASSED = 0, 1, 2, 3
"""Kinds of notes: a call is over; all threads met after it; a table is begun; iterations of a table
are over that nobody looked at."""

MOST = 1 << 10
"""Iterations of which one is looked at, at most: how many passed stands in a note's upper bits."""

_KINDS = {"ran": RAN, "met": MET, "begin": BEGUN}
_HEADER = 64
_ADDRESS = (1 << 48) - 4
"""Bits of a note that are an address."""

ROOM = 1 << 12
"""Notes that a list has room for at first."""


_SAMPLING = f"""
define void @entered(ptr %state, i64 %trips, ptr %local) {{
entry:
  %n.at = getelementptr i64, ptr %local, i64 -5
  %most = load i64, ptr %n.at
  %few = icmp ult i64 %trips, %most
  %fewer = select i1 %few, i64 %trips, i64 %most
  %none = icmp eq i64 %fewer, 0
  %n = select i1 %none, i64 1, i64 %fewer
  %entries.at = getelementptr i64, ptr %local, i64 -4
  %entries = load i64, ptr %entries.at
  %mixed = mul i64 %entries, 2654435761
  %upper = lshr i64 %mixed, 16
  %low = and i64 %upper, 65535
  %phase = urem i64 %low, %n
  %more = add i64 %entries, 1
  store i64 %more, ptr %entries.at
  %passed.at = getelementptr i64, ptr %state, i64 1
  %own.at = getelementptr i64, ptr %state, i64 2
  store i64 %phase, ptr %state
  store i64 0, ptr %passed.at
  store i64 %n, ptr %own.at
  ret void
}}

define void @left(ptr %table, ptr %state, ptr %local) {{
entry:
  %passed.at = getelementptr i64, ptr %state, i64 1
  %passed = load i64, ptr %passed.at
  %none = icmp eq i64 %passed, 0
  br i1 %none, label %done, label %tell
tell:
  %address = ptrtoint ptr %table to i64
  %upper = shl i64 %passed, 48
  %kind = or i64 %address, {PASSED}
  %what = or i64 %kind, %upper
  call void @note(ptr %local, i64 %what)
  store i64 0, ptr %passed.at
  br label %done
done:
  ret void
}}

define void @sampled(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                     ptr %local, ptr %state) {{
entry:
  %passed.at = getelementptr i64, ptr %state, i64 1
  %quiet.at = getelementptr i64, ptr %local, i64 -3
  %quiet = load i64, ptr %quiet.at
  %unseen = icmp ne i64 %quiet, 0
  br i1 %unseen, label %plain, label %choose
choose:
  %wait = load i64, ptr %state
  %now = icmp eq i64 %wait, 0
  br i1 %now, label %look, label %pass
look:
  call void @left(ptr %table, ptr %state, ptr %local)
  %n.at = getelementptr i64, ptr %state, i64 2
  %n = load i64, ptr %n.at
  %others = sub i64 %n, 1
  store i64 %others, ptr %state
  call void @timed(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                   ptr %local)
  ret void
pass:
  %less = sub i64 %wait, 1
  store i64 %less, ptr %state
  %passed = load i64, ptr %passed.at
  %more = add i64 %passed, 1
  store i64 %more, ptr %passed.at
  store i64 1, ptr %quiet.at
  call void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local)
  store i64 0, ptr %quiet.at
  ret void
plain:
  call void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local)
  ret void
}}
"""
"""What a loop calls that looks at one iteration in several: `entered` before the first, `sampled`
for each, `left` behind the last. The state holds how many are let pass, how many were, and one in
how many is looked at."""

_LOOKING = """
define void @looked(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                    ptr %local) {
entry:
  %quiet.at = getelementptr i64, ptr %local, i64 -3
  %quiet = load i64, ptr %quiet.at
  %unseen = icmp ne i64 %quiet, 0
  br i1 %unseen, label %plain, label %look
look:
  call void @timed(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                   ptr %local)
  ret void
plain:
  call void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local)
  ret void
}

define void @begin(ptr %a, i64 %thread, i64 %threads, ptr %barrier, ptr %shared, ptr %local) {
entry:
  %count.at = getelementptr i64, ptr %a, i64 1
  %table = load ptr, ptr %a
  %count = load i64, ptr %count.at
  call void @timed(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                   ptr %local)
  ret void
}
"""
"""A table that is looked at unless one around it is let pass, and where a run begins."""


def _ticks(triple: str) -> str:
    """The instruction that reads the counter."""
    if triple.startswith("aarch64"):
        return "call i64 @llvm.read_volatile_register.i64(metadata !900)"
    return "call i64 @llvm.readcyclecounter()"


def _text(triple: str) -> str:
    def note(kind: str, address: str) -> str:
        name = f"%{kind}.note"
        return (
            f"{name}.at = ptrtoint ptr {address} to i64\n"
            f"  {name} = or i64 {name}.at, {_KINDS[kind]}\n"
            f"  call void @note(ptr %local, i64 {name})"
        )

    return f"""
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
!900 = !{{!"cntvct_el0"}}

define i64 @ticks() {{
entry:
  %now = {_ticks(triple)}
  ret i64 %now
}}

define void @note(ptr %local, i64 %what) {{
entry:
  %header = getelementptr i8, ptr %local, i64 -{_HEADER}
  %end.at = getelementptr i64, ptr %header, i64 1
  %place = load ptr, ptr %header
  %end = load ptr, ptr %end.at
  %room = icmp ult ptr %place, %end
  br i1 %room, label %write, label %lose
write:
  %when = getelementptr i64, ptr %place, i64 1
  %next = getelementptr i64, ptr %place, i64 2
  store i64 %what, ptr %place
  store ptr %next, ptr %header
  %now = {_ticks(triple)}
  store i64 %now, ptr %when
  ret void
lose:
  %lost.at = getelementptr i64, ptr %header, i64 2
  %lost = load i64, ptr %lost.at
  %more = add i64 %lost, 1
  store i64 %more, ptr %lost.at
  ret void
}}

{_SAMPLING}
{_LOOKING}
{walking.walk_with(note)}
"""


@dataclass(frozen=True)
class _Code:
    """Functions by name, and what holds their code."""

    ticks: Any
    addresses: Mapping[str, int]
    keep: Any


def object_code(target: Target) -> bytes:
    """The timed walk, and what reads the counter, as code of a processor."""
    triple = target.text("isa.triple")
    module = Module("timing", triple)
    barrier_function(module)
    return toolchain.emit_object(f"{module}\n{_text(triple)}", target)


@cache
def _code() -> _Code:
    target = host_target()
    code = object_code(target)
    jit = toolchain.linker(target)
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    names = ("ticks", "begin", "move", "repeat", "branch")
    for name in names:
        builder = builder.export_symbol(name)
    library = builder.link(jit, "timing")
    addresses = {name: library[name] for name in names}
    ticks = ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["ticks"])
    return _Code(ticks, addresses, (jit, library))


def ticks() -> int:
    """What the counter says now."""
    return int(_code().ticks())


@dataclass(frozen=True)
class RawNotes:
    """What a thread wrote down, in order.

    Attributes:
        rows: addresses of rows (of tables, where they begin), int64.
        kinds: `RAN`, `MET`, `BEGUN` or `PASSED`.
        ticks: when, int64.
        lost: how many had no place.
        passed: iterations, of `PASSED`.
    """

    rows: NDArray[np.int64]
    kinds: NDArray[np.int64]
    ticks: NDArray[np.int64]
    lost: int
    passed: NDArray[np.int64]


class Clock:
    """Ticks as nanoseconds of `time.perf_counter_ns`, by two looks at both some time apart."""

    def __init__(self) -> None:
        self._start = self._look()
        self._stop = self._start

    def stop(self) -> None:
        """The second look: the longer after the first, the better."""
        self._stop = self._look()

    @staticmethod
    def _look() -> tuple[int, int]:
        """Both at one time, as near as can be: of several looks the one that took least."""
        looks = []
        for _ in range(9):
            before = time.perf_counter_ns()
            now = ticks()
            after = time.perf_counter_ns()
            looks.append((after - before, now, (before + after) // 2))
        return min(looks)[1:]

    @property
    def each(self) -> float:
        """Nanoseconds of a tick."""
        passed = self._stop[0] - self._start[0]
        return (self._stop[1] - self._start[1]) / passed if passed > 0 else 1.0

    def at(self, ticks: NDArray[np.int64]) -> NDArray[Any]:
        """When that was by `time.perf_counter_ns`."""
        return (ticks - self._start[0]) * self.each + self._start[1]


class TimedProgram(NativeProgram):
    """A program that writes down when each of its calls ran; arguments as `NativeProgram`.

    Attributes:
        start: address of the first row: the table that every run begins.
    """

    def _functions(self) -> Mapping[str, int]:
        return _code().addresses

    def _table(self, calls: Sequence[AnyCall]) -> tuple[int, int]:
        """A table of one row, which begins the timed walk of the real one."""
        table = self._tables.table(calls, inside=False)
        self.start = table[0]
        self._begin = np.array([*table, _code().addresses["begin"], 0, ALL, 0], dtype=np.int64)
        self._begin[3] = self._begin.ctypes.data
        return int(self._begin.ctypes.data) + 16, 1

    def _local_places(self, nbytes: int) -> list[int]:
        self._locals = [aligned_bytes(_HEADER + nbytes) for _ in range(self._threads)]
        self._headers = [local[:_HEADER].view(np.int64) for local in self._locals]
        self.every(1)
        self.reserve(ROOM)
        return [int(local.ctypes.data) + _HEADER for local in self._locals]

    @property
    def rows(self) -> Mapping[int, AnyCall]:
        """The call at each row, by the row's address."""
        return self._tables.rows

    def every(self, nth: int) -> None:
        """Look at every nth iteration of loops alone, 1 to `MOST`."""
        for header in self._headers:
            header[3:6] = min(max(nth, 1), MOST), 0, 0

    def reserve(self, notes: int) -> None:
        """Make room for so many notes of each thread; those that there are are forgotten."""
        self._lists = [np.zeros((notes, 2), dtype=np.int64) for _ in range(self._threads)]
        self.forget()

    def forget(self) -> None:
        """Begin the lists anew."""
        for header, notes in zip(self._headers, self._lists, strict=True):
            start = int(notes.ctypes.data)
            header[:3] = start, start + notes.nbytes, 0

    def notes(self) -> list[RawNotes]:
        """What each thread wrote down since the lists were begun."""
        written = []
        for header, notes in zip(self._headers, self._lists, strict=True):
            count = (int(header[0]) - int(notes.ctypes.data)) // 16
            what, when = notes[:count, 0].copy(), notes[:count, 1].copy()
            passed = np.where(what & 3 == PASSED, what >> 48, 0)
            written.append(RawNotes(what & _ADDRESS, what & 3, when, int(header[2]), passed))
        return written


assert ROW_BYTES % 4 == 0, "kinds of notes stand in the low bits of a row's address"
