"""Kernels as calls that can be timed."""

from collections.abc import Callable

import numpy as np

from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, concrete_shape
from tilesmith.search_space.expressions.dtypes import to_numpy


def bound(kernel: NativeKernel) -> Callable[[], None]:
    """A call on seeded random arrays in the kernel's physical layouts."""
    rng = np.random.default_rng(0)
    arrays = {}
    for buffer in (*kernel.inputs, kernel.output):
        array = aligned_empty(concrete_shape(buffer), to_numpy(buffer.dtype))
        array[...] = rng.standard_normal(array.shape)
        arrays[buffer.name] = array
    return kernel.bind({**arrays, **kernel.prepare(arrays)})
