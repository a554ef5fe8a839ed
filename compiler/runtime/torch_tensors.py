"""Tensors as arrays and back: the same memory, no copies.

bfloat16 and the eight-bit floats, which numpy does not know, cross as whole numbers of
their width and are named again on the other side. Invariant: an array made of a tensor keeps that
tensor's memory alive, and the other way round.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError

_CARRIED = {
    torch.bfloat16: ("bfloat16", torch.uint16),
    torch.float8_e4m3fn: ("float8_e4m3", torch.uint8),
    torch.float8_e5m2: ("float8_e5m2", torch.uint8),
    torch.float8_e4m3fnuz: ("float8_e4m3fnuz", torch.uint8),
    torch.float8_e5m2fnuz: ("float8_e5m2fnuz", torch.uint8),
}
_NAMED = {to_numpy(name): (kind, carrier) for kind, (name, carrier) in _CARRIED.items()}
_CARRIERS = {torch.uint16: np.uint16, torch.uint8: np.uint8}
_numpy: Callable[[torch.Tensor], NDArray[Any]] = torch.Tensor.numpy


def array_of(tensor: torch.Tensor, what: str = "a tensor") -> NDArray[Any]:
    """An array over the tensor's memory (its strides too).

    Args:
        what: names the tensor, for messages.

    Raises:
        ModelError: it lies on another device than the CPU, or is no plain tensor of numbers.
    """
    if tensor.dtype not in _CARRIED:
        try:  # in a third of what DLPack takes, and of what looking first takes
            return _numpy(tensor)
        except (RuntimeError, TypeError):
            pass  # what follows says why, or does what has to be done first
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        kind = tensor.layout if tensor.is_cpu else tensor.device
        raise ModelError(f"{what} is on {kind}; dense tensors on the CPU are expected")
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():  # pending operations that memory does not show
        tensor = tensor.resolve_conj().resolve_neg()
    try:
        if tensor.dtype in _CARRIED:
            name, carrier = _CARRIED[tensor.dtype]
            carried: NDArray[Any] = tensor.view(carrier).numpy()
            return carried.view(to_numpy(name))
        return _numpy(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{what} cannot be read as an array of {tensor.dtype}: {reason}"
        ) from error


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the array's memory; of a copy where the array may not be written."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in _NAMED:
        kind, carrier = _NAMED[array.dtype]
        return torch.from_numpy(array.view(_CARRIERS[carrier])).view(kind)
    return torch.from_numpy(array)
