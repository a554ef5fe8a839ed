"""Programs that write down when each of their calls ran. What they take is not looked at: which
calls are noted, in which order and how often, is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy, aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.codegen.native.programs.driver import AnyCall, Branch, KernelCall, MemoryMove, Repeat
from tilesmith.codegen.native.programs.timing import Clock, RawNotes, TimedProgram
from tilesmith.codegen.native.programs.walking import BEGUN, MET, PASSED, RAN
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.workloads.workload import Workload

WORKLOAD = Workload.parse("elementwise shape=40x130 expression=add(x0,x0)")


@pytest.fixture(scope="module")
def doubling() -> NativeKernel:
    target = host_target()
    return compile_config(WORKLOAD, target, default_of(WORKLOAD, target))


def _arrays(length: int) -> list[np.ndarray]:
    first = np.random.default_rng(0).standard_normal((40, 130)).astype(np.float32)
    return [aligned_copy(first), *(aligned_empty(first.shape, first.dtype) for _ in range(length))]


def _calls(kernel: NativeKernel, arrays: list[np.ndarray], *threads: int) -> list[KernelCall]:
    each = threads or (1 << 30,)
    return [
        KernelCall(kernel.address, (a.ctypes.data, b.ctypes.data), each[number % len(each)])
        for number, (a, b) in enumerate(pairwise(arrays))
    ]


def _order(program: TimedProgram, notes: RawNotes, calls: list[AnyCall]) -> list[int]:
    """Numbers of the calls that a thread made (or passed by), in order."""
    numbers = {id(call): number for number, call in enumerate(calls)}
    rows = notes.rows[notes.kinds == RAN]
    return [numbers[id(program.rows[int(row)])] for row in rows]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_notes_every_call_in_order(doubling: NativeKernel, threads: int) -> None:
    arrays = _arrays(20)
    calls = _calls(doubling, arrays, 3, 1, 2)
    program = TimedProgram(calls, threads, keep=(doubling, arrays))
    for _ in range(3):
        program.run()
    np.testing.assert_array_equal(arrays[-1], arrays[0] * np.float32(2**20))
    present = [notes for notes in program.notes() if notes.rows.size]
    assert 1 <= len(present) <= threads
    for notes in present:
        assert notes.lost == 0
        assert _order(program, notes, list(calls)) == [*range(20)] * 3
        assert (np.diff(notes.ticks) >= 0).all()
        assert np.count_nonzero(notes.kinds == BEGUN) == 3
        met = np.count_nonzero(notes.kinds == MET)
        assert met == (0 if len(present) == 1 else met)
        assert (met > 0) == (len(present) > 1)


def test_loops_and_branches_note_what_they_run(doubling: NativeKernel) -> None:
    arrays = _arrays(2)
    flag, counter = np.zeros(64, np.uint8), np.zeros(8, np.int64)
    first, second = _calls(doubling, arrays)
    move = MemoryMove(arrays[0].ctypes.data, arrays[2].ctypes.data, 16)
    branch = Branch(flag.ctypes.data, ((move,), (second,)))
    loop = Repeat((first, branch), 5, 0, 0, counter.ctypes.data)
    calls: list[AnyCall] = [loop, first, branch, move, second]
    program = TimedProgram([loop], keep=(doubling, arrays, flag, counter))
    program.run()
    (notes,) = program.notes()
    assert _order(program, notes, calls) == [1, 4, 2] * 5 + [0]
    flag[0] = 1
    program.forget()
    program.run()
    (notes,) = program.notes()
    assert _order(program, notes, calls) == [1, 3, 2] * 5 + [0]
    assert np.count_nonzero(notes.kinds == BEGUN) == 1 + 5 * 2


def test_notes_without_a_place_are_counted_and_harm_nothing(doubling: NativeKernel) -> None:
    arrays = _arrays(30)
    program = TimedProgram(_calls(doubling, arrays), keep=(doubling, arrays))
    program.reserve(10)
    program.run()
    (notes,) = program.notes()
    assert notes.rows.size == 10
    assert notes.lost == 21  # of 30 calls and the table's beginning
    np.testing.assert_array_equal(arrays[-1], arrays[0] * np.float32(2**30))
    program.forget()
    (notes,) = program.notes()
    assert notes.rows.size == notes.lost == 0


def test_a_clock_turns_ticks_into_the_time_of_day() -> None:
    clock = Clock()
    while clock._stop[1] - clock._start[1] < 2_000_000:
        clock.stop()
    assert 0.01 < clock.each < 100  # 10 MHz to 100 GHz
    ends = np.array([clock._start[0], clock._stop[0]])
    np.testing.assert_allclose(clock.at(ends), [clock._start[1], clock._stop[1]], rtol=1e-12)


def test_of_loops_every_nth_iteration_is_looked_at_and_none_is_lost(doubling: NativeKernel) -> None:
    arrays = _arrays(2)
    counters = np.zeros(16, np.int64)
    first, second = _calls(doubling, arrays)
    inner = Repeat((second,), 2, 0, 0, counters[8:].ctypes.data)
    loop = Repeat((first, inner), 7, 0, 0, counters.ctypes.data)
    calls: list[AnyCall] = [loop, first, inner, second]
    program = TimedProgram([loop], keep=(doubling, arrays, counters))
    program.every(3)
    looked = []
    for _ in range(12):
        program.forget()
        program.run()
        (notes,) = program.notes()
        assert (np.diff(notes.ticks) >= 0).all() and counters[0] == 6
        order = _order(program, notes, calls)
        heads = [program.rows[int(row)] for row in notes.rows[notes.kinds == PASSED]]
        of_loop = notes.passed[notes.kinds == PASSED][[head == first for head in heads]]
        by_call = [order.count(number) for number in range(4)]
        assert by_call[0] == 1 and by_call[1] == by_call[2] and of_loop.sum() + by_call[1] == 7
        inside = notes.passed.sum() - of_loop.sum()
        assert by_call[3] + inside == 2 * by_call[2] and by_call[3] >= by_call[2] >= 2
        looked.append(by_call[1])
    assert set(looked) == {2, 3}, "where it begins to count moves"
    np.testing.assert_array_equal(arrays[2], arrays[0] * 4)
