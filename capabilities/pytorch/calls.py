"""One call of a compiled module: tensors in, the leaves of its results out.

Invariant: what the module writes into its arguments and state is written after all results are
computed; a result that is such an argument or state is that tensor itself, as for the module.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tilesmith.capabilities.pytorch.program import CallSignature
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.torch_tensors import array_of, tensor_of
from tilesmith.compiler.varying.executable import VaryingExecutable


def called(
    executable: Executable | VaryingExecutable,
    signature: CallSignature,
    tensors: Sequence[torch.Tensor],
) -> list[Any]:
    """Run the executable.

    Args:
        tensors: one for each of the signature's sources, in order.

    Returns:
        the leaves of what the module gives.

    Raises:
        ModelError: a tensor's shape, element type or device is not what was compiled for.
        JobError: as `Executable.run`.
    """
    given = {
        source.name: array_of(_real(tensor), f"argument '{source.name}'")
        for source, tensor in zip(signature.sources, tensors, strict=True)
    }
    arrays = executable.run(given)
    outputs = [tensor_of(arrays[info.name]) for info in executable.outputs]
    for number in signature.complex:
        outputs[number] = torch.view_as_complex(outputs[number])
    return results_of(outputs, signature, tensors)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as ONNX has them: pairs of real ones, along an axis more."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def results_of(
    outputs: Sequence[Any], signature: CallSignature, tensors: Sequence[torch.Tensor]
) -> list[Any]:
    """The leaves of what a module gives, of its program's outputs; what it writes is written.

    Args:
        outputs: tensors of the program, or numbers.
        tensors: as for `called`.
    """
    if signature.is_plain:
        return list(outputs)
    written: dict[int, torch.Tensor] = {}
    for output, source in signature.writes:
        written[output] = tensors[source]
        if outputs[output].numel() and outputs[output].data_ptr() == tensors[source].data_ptr():
            continue  # kernels wrote it, or `run` did
        with torch.no_grad():
            tensors[source].copy_(outputs[output])
    leaves: list[Any] = []
    for result in signature.given:
        if result.output < 0:
            leaves.append(result.constant)
        elif result.output in written:
            leaves.append(written[result.output])
        else:
            value = outputs[result.output]
            number = result.number and isinstance(value, torch.Tensor)
            leaves.append(value.item() if number else value)
    return leaves
