"""Formulas: arithmetic on tensors written as Python writes it.

    formula("stablehlo.log_plus_one")          the rule of that operation is the function below
    def log_plus_one(x): u = 1 + x; return where(u.equals(1), x, log(u) * (x / (u - 1)))

A `RealValue` is a tensor of real numbers and a `ComplexValue` one of complex numbers; every
operation on them writes a node. Python's own numbers take the element type of the tensor they meet.
Formulas look at the shapes of their operands alone, not at an operation's: so the body of a
reduction, a function of single numbers, can be put to work on whole tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, paired
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS

F = TypeVar("F", bound=Callable[..., Any])


def _binary(
    operator: str, flags: str = "", *, dtype: str = "", reflected: bool = False
) -> "Callable[[RealValue, RealValue | float], RealValue]":
    """A method: an operator of two, another one where the first operand is of truth values."""

    def method(self: "RealValue", other: "RealValue | float") -> "RealValue":
        chosen = flags if flags and self.dtype == "bool" else operator
        other = self.like(other)
        first, second = (other, self) if reflected else (self, other)
        return first.apply(chosen, second, dtype=dtype)

    return method


def _unary(
    operator: str, flags: str = "", *, dtype: str = ""
) -> "Callable[[RealValue], RealValue]":
    """A method or a function: an operator of one, another one of truth values."""

    def method(self: "RealValue") -> "RealValue":
        return self.apply(flags if flags and self.dtype == "bool" else operator, dtype=dtype)

    return method


@dataclass(frozen=True)
class RealValue:
    """A tensor of real numbers, whole numbers or truth values in a formula."""

    b: GraphBuilder
    value: TensorValue

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def apply(
        self, operator: str, *others: "RealValue", dtype: str = "", **attributes: Any
    ) -> "RealValue":
        """An operator of ONNX that broadcasts; its result has this element type, or another."""
        values = (self.value, *(other.value for other in others))
        return RealValue(self.b, self.b.elementwise(operator, *values, dtype=dtype, **attributes))

    def like(self, number: "RealValue | float") -> "RealValue":
        """A number of Python in this element type."""
        if isinstance(number, RealValue):
            return number
        return RealValue(self.b, self.b.like(number, self.value))

    def cast(self, dtype: str) -> "RealValue":
        return RealValue(self.b, self.b.cast(self.value, dtype))

    def bits_as(self, dtype: str) -> "RealValue":
        """The same bits as another element type of the same size."""
        if dtype == self.dtype:
            return self
        return self.apply("BitCast", dtype=dtype, to=DTYPE_NUMBERS[dtype])

    __add__ = _binary("Add", "Or")
    __radd__ = _binary("Add", reflected=True)
    __sub__ = _binary("Sub")
    __rsub__ = _binary("Sub", reflected=True)
    __mul__ = _binary("Mul", "And")
    __rmul__ = _binary("Mul", reflected=True)
    __truediv__ = _binary("Div")
    __rtruediv__ = _binary("Div", reflected=True)
    __pow__ = _binary("Pow")
    __and__ = _binary("BitwiseAnd", "And")
    __or__ = _binary("BitwiseOr", "Or")
    __xor__ = _binary("BitwiseXor", "Xor")
    __lt__ = _binary("Less", dtype="bool")
    __le__ = _binary("LessOrEqual", dtype="bool")
    __gt__ = _binary("Greater", dtype="bool")
    __ge__ = _binary("GreaterOrEqual", dtype="bool")
    equals = _binary("Equal", dtype="bool")
    maximum = _binary("Max", "Or")
    minimum = _binary("Min", "And")
    __neg__ = _unary("Neg")
    __abs__ = _unary("Abs")
    __invert__ = _unary("BitwiseNot", "Not")


sqrt, exp, log, erf = _unary("Sqrt"), _unary("Exp"), _unary("Log"), _unary("Erf")
sin, cos, atan = _unary("Sin"), _unary("Cos"), _unary("Atan")
sinh, cosh, tanh = _unary("Sinh"), _unary("Cosh"), _unary("Tanh")
sign, floor, reciprocal = _unary("Sign"), _unary("Floor"), _unary("Reciprocal")
is_nan = _unary("IsNaN", dtype="bool")


def where(condition: RealValue, then: RealValue | float, otherwise: RealValue | float) -> RealValue:
    """`Where`; the branch itself where the condition is known. One branch is a `RealValue`."""
    given = then if isinstance(then, RealValue) else otherwise
    assert isinstance(given, RealValue), "where of two numbers has no element type"
    branches = given.like(then).value, given.like(otherwise).value
    return RealValue(given.b, choose(given.b, condition.value, *branches))


def choose(
    b: GraphBuilder, condition: TensorValue, then: TensorValue, otherwise: TensorValue
) -> TensorValue:
    """As `where`, of tensors outside of formulas."""
    known = b.single(condition)
    if known is not None:
        shape = np.broadcast_shapes(condition.shape, then.shape, otherwise.shape)
        return replace(then if bool(known) else otherwise, shape=shape)
    return b.elementwise("Where", condition, then, otherwise, dtype=then.dtype)


# -- complex numbers ----------------------------------------------------------------------------
@dataclass(frozen=True)
class ComplexValue:
    """A tensor of complex numbers in a formula."""

    real: RealValue
    imaginary: RealValue

    @property
    def parts(self) -> tuple[RealValue, RealValue]:
        return self.real, self.imaginary

    def __mul__(self, other: "ComplexValue | RealValue | float") -> "ComplexValue":
        if not isinstance(other, ComplexValue):
            return ComplexValue(self.real * other, self.imaginary * other)
        (a, c), (d, e) = self.parts, other.parts
        return ComplexValue(a * d - c * e, a * e + c * d)

    def __truediv__(self, other: RealValue) -> "ComplexValue":
        return ComplexValue(self.real / other, self.imaginary / other)

    def conjugate(self) -> "ComplexValue":
        return ComplexValue(self.real, -self.imaginary)


# -- rules --------------------------------------------------------------------------------------
def number(b: GraphBuilder, value: TensorValue) -> Any:
    """A value as formulas take it: a `ComplexValue` where it is complex, else a `RealValue`."""
    if isinstance(value, Complex):
        return ComplexValue(RealValue(b, value.real), RealValue(b, value.imaginary))
    return RealValue(b, value)


def value_of(result: RealValue | ComplexValue) -> TensorValue:
    """What `number` was given."""
    if isinstance(result, ComplexValue):
        return paired(result.real.value, result.imaginary.value)
    return result.value


def formula(*names: str) -> Callable[[F], F]:
    """Decorator: the function of numbers computes these operations."""

    def add(function: F) -> F:
        def rule(translation: Translation, operation: Any, values: Values) -> Values:
            given = (number(translation.builder, value) for value in values)
            return [value_of(function(*given))]

        for name in names:
            rules.register(name)(rule)
        return function

    return add
