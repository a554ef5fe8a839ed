"""Arrays of the caller's that a run updates: taken as they are, or copied in and out.

Kernels write an array where it is if it lies as they expect tensors to lie: in one piece, from a
cache line on. Any other is copied to memory of ours before the run and back after it. Invariant:
after a run, an updated input's array holds the output, and is what the caller gets as that output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.compiler.recipe.areas import Bytes
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import Recipe, TensorRef
from tilesmith.search_space.expressions.dtypes import to_numpy


class UpdatedInputs:
    """The updated inputs of one workspace."""

    def __init__(self, recipe: Recipe) -> None:
        refs = {ref.info.name: ref for ref in recipe.inputs}
        self.outputs = {update.output: update.input for update in recipe.updates}
        self._direct = [
            refs[update.input]
            for update in recipe.updates
            if refs[update.input].place.region == "caller"
        ]
        self._staged: dict[str, Bytes] = {}
        self._seen: dict[str, tuple[int, Bytes]] = {}

    def start(self) -> tuple[Bytes, ...]:
        """Memory of ours for every array that is to be written where it is."""
        return tuple(self._own(ref) for ref in self._direct)

    def arrays(self, inputs: Mapping[str, Any]) -> tuple[Bytes, ...]:
        """The memory to run in, one for each array written where it is."""
        arrays = []
        for ref in self._direct:
            array = inputs[ref.info.name]
            if _fits(array, ref):
                arrays.append(self._bytes_of(array, ref.info.name))
                continue
            own = self._own(ref)
            own.view(to_numpy(ref.info.dtype)).reshape(array.shape)[...] = array
            arrays.append(own)
        return tuple(arrays)

    def _bytes_of(self, array: NDArray[Any], name: str) -> Bytes:
        """The array's bytes: the very object of the last run where they are the same memory (which
        that object keeps from being another's), so that nothing has to be linked again."""
        address = int(array.__array_interface__["data"][0])
        if name not in self._seen or self._seen[name][0] != address:
            self._seen[name] = address, array.reshape(-1).view(np.uint8)
        return self._seen[name][1]

    def finish(self, inputs: Mapping[str, Any], results: Mapping[str, NDArray[Any]]) -> None:
        """Copy results to arrays that were not written where they are."""
        for output, name in self.outputs.items():
            if not np.shares_memory(inputs[name], results[output]):
                inputs[name][...] = results[output]

    def _own(self, ref: TensorRef) -> Bytes:
        name = ref.info.name
        if name not in self._staged:
            self._staged[name] = aligned_bytes(max(1, ref.info.nbytes))[: ref.info.nbytes]
        return self._staged[name]


def _fits(array: NDArray[Any], ref: TensorRef) -> bool:
    """Whether kernels can work on the array itself."""
    usual = array.dtype == to_numpy(ref.info.dtype) and array.flags.c_contiguous
    return bool(usual and array.ctypes.data % ALIGNMENT == 0)
