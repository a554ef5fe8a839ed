"""Operators that the host computes in numpy itself, for `onnx.reference` is wrong or cannot.

Found by comparing with onnxruntime and the standard's text. Invariant: a function takes an
`OperatorCall` and returns the outputs in order, values and dtypes as ONNX's text defines them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from numpy.typing import NDArray

from tilesmith.search_space.support.registry import Registry

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


Operator = Callable[[OperatorCall], Results]

operators: Registry[Operator] = Registry("host operator", "tilesmith.compiler.host.operators")
"""What is computed here instead of by `onnx.reference`, by ONNX operator."""

earlier: Registry[tuple[int, Operator]] = Registry(
    "earlier host operator", "tilesmith.compiler.host.operators"
)
"""The same for models of an opset before the one given."""

COMPILED = frozenset({"NonMaxSuppression", "RoiAlign"})
"""Those whose loops run as native code, which nothing else computes faster."""


def host_operator(name: str, before: int = 0) -> Callable[[Operator], Operator]:
    """Decorator: the function computes an ONNX operator, of models before an opset where given."""

    def add(function: Operator) -> Operator:
        if before:
            earlier.register(name)((before, function))
        else:
            operators.register(name)(function)
        return function

    return add


@cache
def own_operators(opset: int) -> Mapping[str, Operator]:
    """What computes ONNX operators here; none of those that `onnx.reference` has right."""
    old = {name: earlier[name][1] for name in earlier if opset < earlier[name][0]}
    return {**{name: operators[name] for name in operators}, **old}
