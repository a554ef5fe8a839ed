"""`Complex`: a complex value as two real ones, and what goes from the one form to the other.

No kernel knows complex numbers. A complex value is the pair of its parts while a module is
translated; at the graph's inputs and outputs it is one tensor of real numbers with an axis of two
more at the end, which is how a complex number lies in memory and how ONNX's DFT has it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue

_NUMBERS = re.compile(r"\(([^(),]+),([^(),]+)\)")
_BITS = {"float32": np.uint32, "float64": np.uint64}


@dataclass(frozen=True)
class Complex(TensorValue):
    """A complex value. As a `TensorValue` it is its real part, so only rules of complex numbers
    may have it; `Translation` gives it to no other.

    Attributes:
        imaginary: of the same element type and shape as the real part.
        whole_pair: the tensor [..., 2] that both were cut out of, where there is one.
    """

    imaginary: TensorValue
    whole_pair: TensorValue | None = None

    @property
    def real(self) -> TensorValue:
        return TensorValue(self.name, self.dtype, self.own, self.shape)


def paired(real: TensorValue, imaginary: TensorValue) -> Complex:
    """The complex value of two parts of one shape."""
    return Complex(real.name, real.dtype, real.own, real.shape, imaginary)


def parts(value: TensorValue) -> list[TensorValue]:
    """The two parts of a complex value; a real one alone."""
    return [value.real, value.imaginary] if isinstance(value, Complex) else [value]


def flat(values: Sequence[TensorValue]) -> list[TensorValue]:
    """All parts of all values, in order."""
    return [part for value in values for part in parts(value)]


def packed(given: Sequence[TensorValue], like: Sequence[TensorValue]) -> list[TensorValue]:
    """What `flat` was given: pairs where `like` has complex values."""
    left: Iterator[TensorValue] = iter(given)
    return [
        paired(next(left), next(left)) if isinstance(value, Complex) else next(left)
        for value in like
    ]


def stacked(b: GraphBuilder, value: TensorValue) -> TensorValue:
    """One tensor [..., 2] of a complex value; a real one as it is."""
    if not isinstance(value, Complex):
        return value
    if value.whole_pair is not None:
        return value.whole_pair
    names = [b.reshape(b.full(part), (*part.shape, 1)).name for part in parts(value)]
    return b.add("Concat", names, value.dtype, (*value.shape, 2), axis=len(value.shape))


def parted(b: GraphBuilder, pair: TensorValue) -> Complex:
    """The complex value of a tensor [..., 2]."""
    shape, axis = pair.shape[:-1], len(pair.shape) - 1
    halves = []
    for part in range(2):
        lists = ([part], [part + 1], [axis])
        names = [b.constant(np.array(entry, np.int64)).name for entry in lists]
        cut = b.add("Slice", [b.full(pair).name, *names], pair.dtype, (*shape, 1))
        halves.append(b.reshape(cut, shape))
    return replace(paired(halves[0], halves[1]), whole_pair=pair)


def constant(b: GraphBuilder, array: NDArray[Any]) -> TensorValue:
    """A constant, of complex numbers or of others."""
    if array.dtype.kind != "c":
        return b.constant(array)
    return paired(b.constant(array.real), b.constant(array.imag))


def read_constant(printed: str, dtype: str, shape: Shape) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both parts of a constant as MLIR prints it, which has no other way to complex numbers; of
    shape () where all numbers are equal.

    Raises:
        ValueError: it is printed in another way.
    """
    text = printed.partition("dense<")[2]
    if text.startswith('"0x'):
        digits = text[3 : text.index('"', 3)]
        numbers = np.frombuffer(bytes.fromhex(digits), dtype).reshape(-1, 2)
    else:
        listed = _NUMBERS.findall(text.rpartition("> : ")[0])
        numbers = np.array([[_number(word, dtype) for word in pair] for pair in listed], dtype)
    if len(numbers) == 1:
        return numbers[0, 0], numbers[0, 1]
    numbers = numbers.reshape(*shape, 2)
    return np.ascontiguousarray(numbers[..., 0]), np.ascontiguousarray(numbers[..., 1])


def _number(word: str, dtype: str) -> Any:
    """A number as printed: decimal, or the bits of one that has no decimals."""
    word = word.strip()
    if word.startswith("0x"):
        return np.array(int(word, 16), _BITS[dtype]).view(dtype)
    return float(word)
