"""`OperatorCall`: one run of an ONNX operator that the host computes in numpy itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Attributes = Mapping[str, Any]
Results = tuple[Array, ...]


@dataclass(frozen=True)
class OperatorCall:
    """What an operator is run on.

    Attributes:
        attributes: of the node, texts as `str`; those left out are not in it.
        arrays: the inputs in order, None where an optional one is left out.
        opset: version of ONNX's operators the node is written in.
        outputs: how many outputs the node names.
    """

    attributes: Attributes
    arrays: Sequence[Any]
    opset: int
    outputs: int = 1

    @property
    def inputs(self) -> list[Array]:
        """The inputs that are there."""
        return [array for array in self.arrays if array is not None]

    def input(self, position: int) -> Any:
        """The input at `position`, or None where it is left out."""
        return self.arrays[position] if position < len(self.arrays) else None
