"""Kernels link where the holes of the address space are small, or gigabytes away from those."""

from __future__ import annotations

import subprocess
import sys

import pytest

CROWDED = """
import ctypes
import numpy as np
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.workloads.workload import Workload

workload = Workload.parse("softmax shape=64x100")
code = compile_config(workload, host_target(), default_of(workload, host_target())).code
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, *[ctypes.c_int] * 2, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
GIB, PAGE, PRIVATE = 1 << 30, 4096, 0x22 | 0x4000  # anonymous, nothing reserved

def taken(size):
    found = libc.mmap(None, size, 0, PRIVATE, -1, 0)
    return None if found in (None, 2**64 - 1) else found

end = taken(64 * GIB) + 64 * GIB
for size in (GIB, 64 << 20, 4 << 20, 256 << 10, 64 << 10, 16 << 10, PAGE):
    for _ in range(3000):
        if taken(size) is None:
            break
for number in range(400):
    libc.munmap(end - (2 * number + 2) * PAGE, PAGE)
for number in range(40):
    libc.munmap(end - 8 * GIB - number * (1 << 20), 16 * PAGE)
libc.munmap(end - 16 * GIB, GIB)
x = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
kernel = NativeKernel(code)
y = kernel.allocate_output()
kernel.run({"x": x, kernel.output.name: y})
np.testing.assert_allclose(y.sum(axis=-1), 1.0, rtol=1e-5)
print("linked")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="maps memory as Linux does")
def test_sections_stay_together() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "linked\n", done.stderr
