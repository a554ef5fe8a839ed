"""Kernels as calls: bound to arrays that they are timed on, or to sizes where those vary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_copy, aligned_empty
from tilesmith.codegen.native.kernel import (
    KernelCode,
    NativeKernel,
    compile_program,
    concrete_shape,
)
from tilesmith.codegen.programs.structures import KernelSpec, own_name
from tilesmith.search_space.expressions.dtypes import to_numpy

SIZES = "sizes"
"""Name of the array of sizes' values among a kernel's arguments; no operand is called so."""


def bound(kernel: NativeKernel) -> Callable[[], None]:
    """A call on seeded random arrays in the kernel's physical layouts."""
    rng = np.random.default_rng(0)
    arrays = {}
    for buffer in (*kernel.inputs, kernel.output):
        array = aligned_empty(concrete_shape(buffer), to_numpy(buffer.dtype))
        array[...] = rng.standard_normal(array.shape)
        arrays[buffer.name] = array
    return kernel.bind({**arrays, **kernel.prepare(arrays)})


def code_of(spec: KernelSpec) -> KernelCode:
    """The code of a kernel; errors as of `KernelSpec.program`, or `CodegenError`."""
    return compile_program(spec.program(), spec.target)


class VaryingKernel(NativeKernel):
    """A kernel that keeps its sizes; their values are one more of its arguments."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(code_of(spec))
        self.sizes = spec.sizes

    def values(self, sizes: Mapping[str, int]) -> NDArray[np.int64]:
        """What the argument behind the parameters points at."""
        return np.array([sizes[size.name] for size in self.sizes], dtype=np.int64)

    def pointers(self, arrays: Mapping[str, NDArray[Any]]) -> ctypes.Array[Any]:
        given = [*super().pointers(arrays), arrays[SIZES].ctypes.data if SIZES in arrays else None]
        return (ctypes.c_void_p * len(given))(*given)

    def output_at(self, sizes: Mapping[str, int]) -> NDArray[Any]:
        """A zeroed output array in its physical layout, at these sizes."""
        own = {own_name(number): sizes[size.name] for number, size in enumerate(self.sizes)}
        shape = tuple(int(extent.evaluate(own)) for extent in self.output.shape)
        return aligned_empty(shape, to_numpy(self.output.dtype))

    def at(self, sizes: Mapping[str, int], inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Pack constants, run once at these sizes, return the output."""
        arrays = {name: aligned_copy(array) for name, array in inputs.items()}
        output = self.output_at(sizes)
        arrays[SIZES] = self.values(sizes)
        self.run({**arrays, **self.prepare(arrays), self.output.name: output})
        return output
