"""`CompiledFunction`: a compiled function of JAX, called as the function was.

Invariant: arrays go in and come out by DLPack or the buffer protocol; what JAX can take as it lies
in memory is not copied.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.traced import BY_DLPACK, JaxModel, array_of
from tilesmith.compiler.runtime.executable import Executable, own_aligned
from tilesmith.search_space.support.errors import ModelError


class CompiledFunction:
    """See the module's docstring.

    Attributes:
        model: the function as traced.
        executable: what runs it.
    """

    def __init__(self, model: JaxModel, executable: Executable) -> None:
        self.model, self.executable = model, executable

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives: a tree of JAX's arrays.

        Raises:
            ModelError: a tree of another form than the examples', or arrays of other shapes.
            JobError: as `Executable.run`.
        """
        leaves, tree = jax.tree_util.tree_flatten(tuple(arguments))
        if tree != self.model.arguments:
            raise ModelError(
                f"'{self.model.name}' was traced for {self.model.arguments} and is called with "
                f"{tree}; trace it again for that"
            )
        given = {
            name: _parted(_fitting(leaf, dtype))
            for name, leaf, dtype in zip(self.model.inputs, leaves, self.model.dtypes, strict=True)
        }
        outputs = self.executable.run(given, own_aligned)
        results = [
            _shared(_joined(array, dtype))
            for array, dtype in zip(outputs.values(), self.model.given, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.model.results, results)


def _parted(array: NDArray[Any]) -> NDArray[Any]:
    """Complex numbers as real ones, [..., 2], over the same memory."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(array.real.dtype)


def _joined(array: NDArray[Any], dtype: np.dtype) -> NDArray[Any]:
    """What `_parted` was given, where that was complex."""
    if dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).view(dtype)[..., 0]


def _shared(array: NDArray[Any]) -> jax.Array:
    """One of JAX's arrays over the memory; a copy of an element type that DLPack does not carry."""
    if array.dtype in BY_DLPACK and array.size:
        return jax.dlpack.from_dlpack(array)
    return jax.numpy.asarray(array)


def _fitting(leaf: Any, dtype: Any) -> NDArray[Any]:
    """The leaf as JAX takes it: numbers of Python and of 64 bits as it takes those."""
    array = array_of(leaf)
    narrowed = jax.dtypes.canonicalize_dtype(array.dtype) == dtype
    if array.dtype != dtype and (narrowed or not hasattr(leaf, "dtype")):
        return np.asarray(array, dtype=dtype)
    return array
