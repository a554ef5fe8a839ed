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

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    joined,
    load64,
    routine,
    routines_text,
    store64,
)
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.llvm.text.ir import Module
from tilesmith.codegen.llvm.threads import barrier_function
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs import walking
from tilesmith.codegen.native.programs.driver import ALL, AnyCall, NativeProgram
from tilesmith.codegen.native.programs.walking import PASSED, ROW_BYTES
from tilesmith.search_space.hardware.target import Target

MOST = 1 << 10
"""Iterations of which one is looked at, at most: how many passed stands in a note's upper bits."""

_HEADER = 64
_ADDRESS = (1 << 48) - 4
"""Bits of a note that are an address."""

ROOM = 1 << 12
"""Notes that a list has room for at first."""


_TICKS = """
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
!900 = !{{!"cntvct_el0"}}

define i64 @ticks() {{
entry:
  %now = call i64 {counter}
  ret i64 %now
}}
"""

_COUNTERS = {"aarch64": "@llvm.read_volatile_register.i64(metadata !900)"}
"""What reads the counter, where it is not `llvm.readcyclecounter`."""

read_ticks = External("ticks", "i64 ()")


@routine
def note(local: Address, what: int) -> None:
    """Write {what, ticks} at the next place of a thread's list, or count what has none."""
    header = local - _HEADER
    place = load64(header)
    if place >= load64(header + 8):
        store64(header + 16, load64(header + 16) + 1)
        return
    store64(place, what)
    store64(header, place + 16)
    store64(place + 8, read_ticks())


def _text(triple: str) -> str:
    counter = _COUNTERS.get(triple.split("-")[0], "@llvm.readcyclecounter()")
    ticks = _TICKS.format(counter=counter)
    return joined(ticks, routines_text((note,)), walking.timed_text())


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
    return toolchain.emit_object(joined(str(module), _text(triple)), target)


@cache
def _code() -> _Code:
    target = host_target()
    names = ("ticks", "begin", "move", "repeat", "branch")
    addresses, keep = toolchain.load(object_code(target), target, "timing", names)
    return _Code(ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["ticks"]), addresses, keep)


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
        """Make room for `notes` notes of each thread and discard earlier notes."""
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
