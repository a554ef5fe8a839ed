"""Arrays of other frameworks, by DLPack: the same memory, no copies.

Invariant: an array keeps alive what it was made of.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import ModelError


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
