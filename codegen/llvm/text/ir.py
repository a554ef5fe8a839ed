"""LLVM IR as text: types, constants, values, blocks, functions, modules.

A kernel is up to ten thousand instructions and a tuner writes hundreds of kernels, so an
instruction costs one formatted line here and one small object for its result; llvmlite, whose
names are kept where it has them, spends ten times that on objects that could be edited (see
docs/decisions). LLVM parses and verifies the text. Lists of the instructions and their meaning: the
LLVM Language Reference Manual.

Invariants: types and integer constants are interned, so `is` and hashing by identity compare them;
the text of a value never changes.
"""

import struct
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import size_of, to_numpy


class Type:
    """A type; `str` is its spelling."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


Sign = Literal["signed", "unsigned", "bits"]


class IntType(Type):
    """An integer of `width` bits.

    LLVM's integers have no sign, its instructions have: `sign` says which ones are meant. "bits"
    are moved as they are, and nothing is computed with them (`NarrowFloat`).
    """

    def __init__(self, width: int, sign: Sign = "signed") -> None:
        super().__init__(f"i{width}")
        self.width = width
        self.sign = sign
        self._numbers: dict[int, Constant] = {}

    def __call__(self, number: int) -> "Constant":
        """The number as a constant of this type."""
        constant = self._numbers.get(number)
        if constant is None:
            constant = self._numbers[number] = Constant(self, number, str(number))
        return constant


class NarrowFloat(IntType):
    """A floating type of fewer than 32 bits: in memory, and on its way there, an element is its
    bits; to be computed with, it becomes a `float` (`narrow`)."""

    def __init__(self, dtype: str) -> None:
        super().__init__(8 * size_of(dtype), "bits")
        self.dtype = dtype

    def holds(self, number: float) -> bool:
        """Whether a number has an element that is exactly it."""
        return bool(self._element(number) == number)

    def _element(self, number: float) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            return np.array([number]).astype(to_numpy(self.dtype))

    def of(self, number: float) -> "Constant":
        """The bits of the element nearest to a number; the constant keeps the number."""
        bits = self._element(number).view(np.dtype(f"u{self.width // 8}"))
        return Constant(self, number, str(int(bits[0])))


class FloatType(Type):
    """`half`, `float` or `double`, of 16, 32 or 64 bits."""

    def __init__(self, width: int) -> None:
        super().__init__({16: "half", 32: "float", 64: "double"}[width])
        self.width = width

    def __call__(self, number: float) -> "Constant":
        """The number as a constant of this type, rounded to it; the constant keeps the number, so
        that it may become one of another type."""
        rounded = number
        if self.width == 32:
            with np.errstate(over="ignore"):
                rounded = float(np.float32(number))
        (bits,) = struct.unpack("<Q", struct.pack("<d", rounded))
        return Constant(self, number, f"0x{bits:016X}")


class VectorType(Type):
    """`count` lanes of an integer or floating-point type."""

    def __init__(self, element: IntType | FloatType, count: int) -> None:
        super().__init__(f"<{count} x {element}>")
        self.element = element
        self.count = count


@cache
def integer(width: int, sign: Sign = "signed") -> IntType:
    """The integer type of `width` bits."""
    return IntType(width, sign)


@cache
def vector(element: IntType | FloatType, count: int) -> VectorType:
    """The vector type of `count` lanes."""
    return VectorType(element, count)


BOOL, INT32, INDEX = integer(1), integer(32), integer(64)
HALF, FLOAT, DOUBLE = FloatType(16), FloatType(32), FloatType(64)
POINTER, VOID = Type("ptr"), Type("void")


class Value:
    """An operand: its type, and the text instructions name it by."""

    __slots__ = ("text", "type")

    def __init__(self, kind: Type, text: str) -> None:
        self.type = kind
        self.text = text


def lanes_of(value: Value) -> int:
    """Vector lanes of a value; 0 for a scalar."""
    return value.type.count if isinstance(value.type, VectorType) else 0


def scalar_of(kind: Type) -> Type:
    """The element type of a vector type; a scalar type as it is."""
    return kind.element if isinstance(kind, VectorType) else kind


class Constant(Value):
    """A constant; `number` is its value, or that of all its lanes; None where they differ."""

    __slots__ = ("number",)

    def __init__(self, kind: Type, number: float | None, text: str) -> None:
        super().__init__(kind, text)
        self.number = number


_constants: dict[tuple[Type, str], Constant] = {}


def literal(kind: Type, number: float) -> Constant:
    """A number as constant of a scalar type or, in every lane, of a vector type.

    Integers stay in their range. Kept for the next use: a kernel names few constants, thousands of
    times.
    """
    key = (kind, repr(number))  # 0.0 and -0.0 are equal, and differ
    constant = _constants.get(key)
    if constant is None:
        if len(_constants) > 4096:
            _constants.clear()
        constant = _constants[key] = _literal(kind, number)
    return constant


def _literal(kind: Type, number: float) -> Constant:
    if isinstance(kind, VectorType):
        lane = literal(kind.element, number)
        zero = lane.text in ("0", "0x0000000000000000")
        text = "zeroinitializer" if zero else f"splat ({kind.element} {lane.text})"
        return Constant(kind, lane.number, text)
    if isinstance(kind, NarrowFloat):
        return kind.of(number)
    if isinstance(kind, IntType):
        if kind.width == 1:
            return kind(int(number != 0))
        least = -(1 << (kind.width - 1)) if kind.sign == "signed" else 0
        most = least + (1 << kind.width) - 1
        return kind(int(min(max(number, least), most)))
    assert isinstance(kind, FloatType), f"no literal of type {kind}"
    return kind(number)


class _Lanes(Constant):
    """A constant vector of integers that differ; `numbers` are those of its lanes."""

    __slots__ = ("numbers",)

    def __init__(self, kind: VectorType, numbers: Sequence[int]) -> None:
        text = ", ".join(f"{kind.element} {number}" for number in numbers)
        super().__init__(kind, None, f"<{text}>")
        self.numbers = tuple(numbers)


def lanes(kind: VectorType, numbers: Sequence[int]) -> Constant:
    """A constant vector of integers, lane by lane."""
    return literal(kind, numbers[0]) if len(set(numbers)) == 1 else _Lanes(kind, numbers)


def numbers_of(value: Value) -> tuple[int, ...] | None:
    """The numbers in the lanes of a vector of integers, where it is a constant."""
    if isinstance(value, _Lanes):
        return value.numbers
    if isinstance(value, Constant) and value.number is not None:
        return (int(value.number),) * lanes_of(value)
    return None


@cache
def undefined(kind: VectorType) -> Constant:
    """Return a vector whose elements are undefined."""
    return Constant(kind, None, "undef")


class BasicBlock:
    """A basic block: lines of text, the last one its terminator."""

    def __init__(self, function: "Function", label: str) -> None:
        self.function = function
        self.label = label
        self.lines: list[str] = []
        self.is_terminated = False


class Function(Value):
    """A function of a module; without blocks it is a declaration.

    Attributes:
        attributes: of the function, as text after its parameters.
        noalias: how many of the first parameters point where no other one does.
        given: its definition as text, where it is written in LLVM's language.
    """

    __slots__ = ("arguments", "attributes", "blocks", "given", "internal", "module", "names",
                 "noalias", "result")  # fmt: skip

    def __init__(
        self, module: "Module", name: str, result: Type, parameters: Sequence[Type]
    ) -> None:
        super().__init__(POINTER, f"@{name}")
        self.module = module
        self.result = result
        self.arguments = [Value(kind, f"%a{i}") for i, kind in enumerate(parameters)]
        self.attributes = ""
        self.noalias = 0
        self.internal = False
        self.blocks: list[BasicBlock] = []
        self.given = ""
        self.names = 0
        module.functions[name] = self

    def append_block(self, name: str) -> BasicBlock:
        """A new block at the end."""
        block = BasicBlock(self, f"{name}{len(self.blocks)}")
        self.blocks.append(block)
        return block

    def lines(self) -> list[str]:
        """The definition or declaration as text."""
        if self.given:
            return self.given.splitlines()
        if not self.blocks:
            kinds = ", ".join(str(argument.type) for argument in self.arguments)
            return [f"declare {self.result} {self.text}({kinds})"]
        parameters = ", ".join(
            f"{argument.type} {'noalias ' if i < self.noalias else ''}{argument.text}"
            for i, argument in enumerate(self.arguments)
        )
        linkage = "internal " if self.internal else ""
        definition = [
            f"define {linkage}{self.result} {self.text}({parameters}) {self.attributes} {{"
        ]
        for block in self.blocks:
            definition.append(f"{block.label}:")
            definition += block.lines
        return [*definition, "}"]


class Module:
    """Functions by name; `str` is the module's text."""

    def __init__(self, name: str, triple: str) -> None:
        self.name = name
        self.triple = triple
        self.functions: dict[str, Function] = {}

    def declare(self, name: str, result: Type, parameters: Sequence[Type]) -> Function:
        """A function of that name, declared at its first use; its result is of the type asked for,
        which may have another sign than at other uses."""
        function = self.functions.get(name)
        if function is None:
            return Function(self, name, result, parameters)
        if function.result is result:
            return function
        assert function.result.text == result.text, f"{name} gives {function.result}, not {result}"
        other = copy(function)
        other.result = result
        return other

    def __str__(self) -> str:
        lines = [f'source_filename = "{self.name}"', f'target triple = "{self.triple}"']
        for function in self.functions.values():
            lines += ["", *function.lines()]
        lines += ["", *(f"{node} = {weights}" for node, weights in LIKELIHOODS.items()), ""]
        return "\n".join(lines)


LIKELIHOODS = {
    "!0": '!{!"branch_weights", i32 99, i32 1}',
    "!1": '!{!"branch_weights", i32 1, i32 99}',
}
"""Metadata of branches that are nearly always, or hardly ever, taken."""
