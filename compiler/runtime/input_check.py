"""`InputCheck`: what a caller gives a model is what the model takes, before anything runs.

Arrays of other frameworks become numpy's over the same memory here (by DLPack), so that whatever
comes after knows one kind. Invariant: an array keeps alive what it was made of.
"""

import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.value_types import fits, is_value_type
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text


class InputCheck:
    """Called with arrays by name, it gives them as numpy's; inputs that a recipe is not for it
    refuses in a sentence (`ModelError`)."""

    def __init__(self, recipe: Recipe) -> None:
        self._name = recipe.title
        self._known = {ref.info.name: ref.info for ref in recipe.inputs}
        self._keys = self._known.keys()
        self._usual = tuple(
            (name, info.shape, None if is_value_type(info.dtype) else to_numpy(info.dtype))
            for name, info in self._known.items()
        )
        self._updated = tuple(update.input for update in recipe.updates)

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the class's docstring."""
        given = inputs
        try:
            complete = inputs.keys() == self._keys
        except AttributeError:
            complete = False
        if not complete:
            check_names(self._name, inputs, self._keys)
        for name, shape, dtype in self._usual:
            value = inputs[name]
            if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
                continue  # the others are looked at more closely, which takes a microsecond
            if is_foreign(value):
                value = array_of(value, f"input '{name}' of '{self._name}'")
                given = {**given, name: value}
            self._check(name, value)
        for name in self._updated:
            self._check_updated(name, given[name])
        return given

    def _check(self, name: str, value: Any) -> None:
        info = self._known[name]
        if info.shape is not None and np.shape(value) != info.shape:
            raise ModelError(
                f"input '{name}' of '{self._name}' has the shape {shape_text(np.shape(value))}; "
                f"{shape_text(info.shape)} is expected"
            )
        if not fits(value, info.dtype):
            held = isinstance(value, list | tuple) or value is None
            kind = type(value).__name__ if held else f"dtype {np.asarray(value).dtype}"
            raise ModelError(
                f"input '{name}' of '{self._name}' is of {kind}; {info.dtype} is expected"
            )

    def _check_updated(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise ModelError(
                f"input '{name}' of '{self._name}' is updated by a run; an array that can be "
                "written is expected"
            )


def check_names(model: str, inputs: Any, known: Collection[str]) -> None:
    """Refuse inputs that are given without their names, or of other names (`ModelError`)."""
    if not hasattr(inputs, "keys"):
        form = ", ".join(f'"{name}": ...' for name in known)
        kind = type(inputs).__name__
        raise ModelError(f"inputs of '{model}' are given by name, {{{form}}}, and not as {kind}")
    names = ", ".join(known)
    for name in inputs:
        if name not in known:
            raise ModelError(f"'{model}' has no input '{name}'; its inputs are {names}")
    for name in known:
        if name not in inputs:
            raise ModelError(f"input '{name}' of '{model}' is missing; it takes {names}")


def is_foreign(value: Any) -> bool:
    """Whether a value is another framework's array."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)


def array_of(value: Any, what: str) -> NDArray[Any]:
    """An array over the memory of whatever speaks DLPack (`is_foreign`).

    A copy only of what numpy can't look at: arrays on other devices whose framework copies them
    for the asking. Element types that DLPack of numpy does not know (bfloat16) are taken, too.

    Args:
        what: names the value, for messages.

    Raises:
        ModelError: it is no array on the CPU, or of no element type that numpy knows.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from tilesmith.compiler.runtime.torch_tensors import array_of as array_of_tensor

        return array_of_tensor(value, what)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        try:
            array = np.asarray(value)
        except Exception:  # whatever the framework says to that
            array = np.empty(0, dtype=object)
        if array.dtype == object:
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{what} cannot be read as an array ({reason}); give one that lies on the CPU"
            ) from error
        return array
