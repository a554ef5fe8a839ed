"""The native driver: sequences of kernels, threads that meet, children of a fork."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest

from tilesmith.codegen.host import host_target
from tilesmith.codegen.memory import aligned_copy, aligned_empty
from tilesmith.codegen.native.driver import Call, NativeProgram
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.codegen.structures import default_of
from tilesmith.search_space.workload import Workload


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
    calls = [Call(kernel.address, (a.ctypes.data, b.ctypes.data)) for a, b in pairwise(arrays)]
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
