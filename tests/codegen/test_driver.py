"""The native driver: sequences of kernels, threads that meet, children of a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy, aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.codegen.native.programs.driver import KernelCall, NativeProgram, Repeat, _driver
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.workloads.workload import Workload


@pytest.fixture(scope="module")
def doubling() -> NativeKernel:
    workload = Workload.parse("elementwise shape=40x130 expression=add(x0,x0)")
    target = host_target()
    return compile_config(workload, target, default_of(workload, target))


def chain(
    kernel: NativeKernel, length: int, threads: int
) -> tuple[NativeProgram, list[np.ndarray]]:
    """Arrays where each is twice the one before."""
    first = np.random.default_rng(0).standard_normal((40, 130)).astype(np.float32)
    arrays = [aligned_copy(first)]
    arrays += [aligned_empty(first.shape, first.dtype) for _ in range(length)]
    calls = [
        KernelCall(kernel.address, (a.ctypes.data, b.ctypes.data)) for a, b in pairwise(arrays)
    ]
    code = kernel.code
    program = NativeProgram(
        calls, threads, code.shared_bytes, code.local_bytes, keep=(kernel, arrays)
    )
    return program, arrays


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_kernel_sees_the_whole_of_the_one_before(
    doubling: NativeKernel, threads: int
) -> None:
    program, arrays = chain(doubling, 30, threads)
    for _ in range(5):
        for array in arrays[1:]:
            array.fill(np.nan)
        program.run()
        np.testing.assert_array_equal(arrays[-1], arrays[0] * np.float32(2**30))


def test_a_program_of_nothing_does_nothing() -> None:
    NativeProgram([], threads=2).run()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own(doubling: NativeKernel) -> None:
    program, arrays = chain(doubling, 3, 2)
    program.run()
    child = os.fork()
    if child == 0:
        arrays[-1].fill(0)
        program.run()
        os._exit(0 if np.array_equal(arrays[-1], arrays[0] * 8) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("each", [(1,), (1, 2), (2, 1, 1, 3), (3, 2)])
def test_kernels_that_fewer_threads_run(
    doubling: NativeKernel, threads: int, each: tuple[int, ...]
) -> None:
    _, arrays = chain(doubling, 24, 1)
    calls = [
        KernelCall(doubling.address, (a.ctypes.data, b.ctypes.data), each[number % len(each)])
        for number, (a, b) in enumerate(pairwise(arrays))
    ]
    program = NativeProgram(calls, threads, keep=(doubling, arrays))
    for _ in range(20):
        arrays[-1].fill(np.nan)
        program.run()
        np.testing.assert_array_equal(arrays[-1], arrays[0] * np.float32(2**24))


@pytest.mark.parametrize("each", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_loops_of_kernels_that_some_threads_run(
    doubling: NativeKernel, each: tuple[int, int]
) -> None:
    """Twice two doublings, from one array to the other and back."""
    start = np.random.default_rng(0).standard_normal((40, 130)).astype(np.float32)
    one, other = (aligned_empty(start.shape, start.dtype) for _ in range(2))
    one[...] = start
    counter = aligned_empty((1,), np.dtype(np.int64))
    back_and_forth = ((one, other), (other, one))
    calls = tuple(
        KernelCall(doubling.address, (a.ctypes.data, b.ctypes.data), threads)
        for (a, b), threads in zip(back_and_forth, each, strict=True)
    )
    loop = Repeat(calls, 10, 0, 0, counter.ctypes.data)
    program = NativeProgram([loop], 2, keep=(doubling, one, other, counter))
    program.run()
    np.testing.assert_array_equal(one, start * np.float32(2**20))
    assert counter[0] == 9


def test_threads_that_share_a_core_meet(
    doubling: NativeKernel,
) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("the system binds no threads to cores")
    program, arrays = chain(doubling, 10, 2)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        program.run()
        _driver().teams.run(2, program._address)  # even if there is one core
        team = _driver().teams.of(2)[0]
        for worker in team._workers:
            os.sched_setaffinity(worker.native_id or 0, {min(before)})
        assert _driver().teams.fitting(3) <= 2
        for _ in range(50):
            arrays[-1].fill(np.nan)
            team.run(program._address)
            np.testing.assert_array_equal(arrays[-1], arrays[0] * np.float32(2**10))
    finally:
        os.sched_setaffinity(0, before)


def test_a_process_ends_with_its_threads(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(
        "from tilesmith.codegen.native.programs.driver import KernelCall, MemoryMove\n"
        "from tilesmith.codegen.native.programs.driver import NativeProgram\n"
        "import numpy as np\n"
        "a, b = np.arange(9), np.zeros(9, np.int64)\n"
        "from tilesmith.codegen.native.programs import driver\n"
        "move = MemoryMove(b.ctypes.data, a.ctypes.data, a.nbytes)\n"
        "branch = KernelCall(driver._driver().addresses['branch'], (b.ctypes.data, 0, 0, 0, 0))\n"
        "program = NativeProgram([move, branch], 2)\n"
        "program.run()\n"
        "print(b.sum())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "36\n", "")
