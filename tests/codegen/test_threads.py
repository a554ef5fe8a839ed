"""Threads: every one runs the same code on its own slice, and they meet at barriers."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from tests.codegen.kernels import HOST, LANES
from tilesmith.codegen.host.memory import aligned_bytes, aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule


def chain(rows: int, columns: int) -> Schedule:
    """t = 2x in parallel; s = row sums of t; y = t - s: three root statements, two barriers.

    `t` and `s` are shared, a row's copy of x is each thread's own.
    """
    i, j, k = axis("i", rows), axis("j", columns), axis("k", columns)
    t = Stage("t", (i, j), call("multiply", load("x", i.var, j.var), 2.0))
    s = Stage("s", (i,), load("t", i.var, k.var), (k,), "sum")
    # Rows are read in reverse, so that a missing barrier shows.
    y = Stage("y", (i, j), call("subtract", load("t", rows - 1 - i.var, j.var),
                                load("s", rows - 1 - i.var)))  # fmt: skip
    compute = ComputeDefinition("chain", (Tensor("x", (rows, columns)),), (t, s, y))
    schedule = Schedule(compute).cache_read("x", "t", "x.row", "local")
    schedule = schedule.compute_at("x.row", "t", "i")
    schedule = schedule.split("t", "j", LANES, "jo", "lane").vectorize("t", "lane")
    return schedule.parallel("t", "i").parallel("y", "i", "j")


def run_on(kernel: NativeKernel, threads: int, x: np.ndarray) -> np.ndarray:
    """Call the kernel's entry point from `threads` Python threads, as the driver does."""
    output = np.full(x.shape, np.nan, dtype=np.float32)
    pointers = kernel.pointers({"x": x, "y": output})
    barrier, shared = aligned_bytes(128), aligned_bytes(max(64, kernel.code.shared_bytes))
    locals_ = [aligned_bytes(max(64, kernel.code.local_bytes)) for _ in range(threads)]
    entry = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3
    )(kernel.address)

    def work(thread: int) -> None:
        local = locals_[thread].ctypes.data
        entry(pointers, thread, threads, barrier.ctypes.data, shared.ctypes.data, local)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive(), "the threads did not meet"
    return output


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 5), (4, 2 * LANES), (37, 41)])
def test_any_number_of_threads_computes_the_same(threads: int, shape: tuple[int, int]) -> None:
    kernel = NativeKernel(compile_program(lower(chain(*shape)), HOST))
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    doubled = 2 * x[::-1]
    expected = doubled - doubled.sum(axis=1, keepdims=True)
    for _ in range(5):
        np.testing.assert_array_equal(run_on(kernel, threads, x), expected)


def test_more_threads_than_work() -> None:
    kernel = NativeKernel(compile_program(lower(chain(2, 3)), HOST))
    x = np.ones((2, 3), dtype=np.float32)
    np.testing.assert_array_equal(run_on(kernel, 4, x), np.full((2, 3), -4.0))


def test_each_slice_is_written_by_its_thread_alone() -> None:
    """Thread 0 of 2 writes the first half and leaves the second."""
    i = axis("i", 10)
    stage = Stage("y", (i,), load("x", i.var))
    schedule = Schedule(ComputeDefinition("c", (Tensor("x", (10,)),), (stage,))).parallel("y", "i")
    kernel = NativeKernel(compile_program(lower(schedule), HOST))
    x, y = np.arange(10, dtype=np.float32), aligned_empty((10,), np.dtype(np.float32))
    entry = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3
    )(kernel.address)
    area = aligned_bytes(256).ctypes.data
    entry(kernel.pointers({"x": x, "y": y}), 0, 2, area, area, area)
    assert y.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]
    entry(kernel.pointers({"x": x, "y": y}), 1, 2, area, area, area)
    assert y.tolist() == x.tolist()
