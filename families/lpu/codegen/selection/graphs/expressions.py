"""Scalar expressions as functions of VXM's ALUs.

VXM computes in float32 and int32 and has few functions; the others are put together of them:

    1 / x         y = rsqrt(|x|), y * y with the sign of x            sigmoid   1/2 + tanh(x/2) / 2
    1 / sqrt(x)   rsqrt(x)                                            x / 3     x * (1/3)
    sqrt(x)       x * rsqrt(x), 0 at 0                                 a >= b    a > b or a = b
    round(x)      to int32 and back, below 2^31                        floor     round, then less 1
    erf(x)        Abramowitz and Stegun 7.1.26, to 1.5e-7            log, powers, sin: `series`
    erf(x), of results that are narrower than float32: tanh(x p(x^2)), to 6e-5 of it

Converting to whole numbers rounds to even and saturates there, where the loop IR cuts towards zero;
what is whole already is converted at once.

Invariant: a node's type is float32, int32 or bool wherever an ALU made it, but for conversions and
what is chosen among bytes (greater, less, select).
"""

import math
from collections.abc import Callable

from tilesmith.families.lpu.codegen.selection.graphs.series import logarithm, power, sine
from tilesmith.families.lpu.codegen.selection.graphs.vectors import Applied, Number, Vectors
from tilesmith.families.lpu.schedules.building_blocks.machine import WIDE
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.scalar import Call, Const, Scalar
from tilesmith.search_space.support.errors import CodegenError

_LARGEST = 2.0**31
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P = 0.3275911

_SHORT_ERF = (-0.0016151527699357524, 0.10364080202713619, 1.1283139219667053)
"""Of p, the highest first: the least relative error for 0 < x, by weighted least squares. What is
above `_SATURATED` gives 1 in any case, and would turn p negative."""
_SATURATED = 30.0

BYTES = {"int8": (-128, 127), "uint8": (0, 255)}


class Algebra:
    """Builds graphs of ALU functions; equal ones are the same object.

    Args:
        short: whether results are of fewer digits than float32, so that shorter series will do.
    """

    def __init__(self, short: bool = False) -> None:
        self.known: dict[tuple[object, ...], Vectors] = {}
        self.short = short

    # -- nodes --------------------------------------------------------------------------------
    def number(self, value: float, dtype: str) -> Vectors:
        return self._once(("number", value, dtype), lambda: Number(value, dtype))

    def held(self, tensor: str, row: int, dtype: str) -> Vectors:
        """The number that a row of constants will hold."""
        key = ("held", tensor, row, dtype)
        any_number = 0.5 if is_floating(dtype) else 0.0
        return self._once(key, lambda: Number(any_number, dtype, (tensor, row)))

    def apply(self, function: str, *operands: Vectors, dtype: str = WIDE) -> Vectors:
        key = (function, dtype, *map(id, operands))
        return self._once(key, lambda: Applied(function, operands, dtype))

    def _once(self, key: tuple[object, ...], make: Callable[[], Vectors]) -> Vectors:
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def converted(self, value: Vectors, dtype: str) -> Vectors:
        """A value as another type: rounded to even, saturated."""
        if value.dtype == dtype:
            return value
        if isinstance(value, Number):
            return self._number_as(value, dtype)
        return self.apply("convert", value, dtype=dtype)

    def _number_as(self, number: Number, dtype: str) -> Vectors:
        if number.source is not None:
            return self.held(*number.source, dtype)
        return self.number(number.value, dtype)

    def floating(self, value: Vectors) -> Vectors:
        """A value that an ALU may take as float32."""
        return value if is_floating(value.dtype) else self.converted(value, WIDE)

    # -- arithmetic ---------------------------------------------------------------------------
    def binary(self, function: str, a: Vectors, b: Vectors) -> Vectors:
        """add, subtract, multiply, maximum, minimum; in int32 of whole numbers."""
        if function in ("maximum", "minimum") and a.dtype == b.dtype and a.dtype in BYTES:
            return self.apply(function, a, b, dtype=a.dtype)
        whole = not any(is_floating(v.dtype) for v in (a, b) if not _is_literal(v))
        if whole and all(v.dtype != "bool" for v in (a, b)):
            return self.apply(function, *(self._whole(v) for v in (a, b)), dtype="int32")
        return self.apply(function, self.floating(a), self.floating(b))

    def _whole(self, value: Vectors) -> Vectors:
        return self._number_as(value, "int32") if isinstance(value, Number) else value

    def compare(self, function: str, a: Vectors, b: Vectors) -> Vectors:
        whole = not any(is_floating(v.dtype) for v in (a, b) if not _is_literal(v))
        make = self._whole if whole else self.floating
        return self.apply(function, make(a), make(b), dtype="bool")

    def flag(self, value: Vectors) -> Vectors:
        """Whether a value is not zero."""
        if value.dtype == "bool":
            return value
        return self.apply("not", self.compare("equal", value, self.number(0, value.dtype)),
                          dtype="bool")  # fmt: skip

    def select(self, condition: Vectors, then: Vectors, otherwise: Vectors) -> Vectors:
        types = {v.dtype for v in (then, otherwise) if not _is_literal(v)}
        if len(types) <= 1:  # nothing is computed, so that narrow ones stay
            dtype = min(types, default=WIDE)
        else:
            dtype = WIDE if any(map(is_floating, types)) else "int32"
        chosen = (self._as(part, dtype) for part in (then, otherwise))
        return self.apply("select", self.flag(condition), *chosen, dtype=dtype)

    def _as(self, value: Vectors, dtype: str) -> Vectors:
        """A value that is chosen as one of a type: numbers saturate."""
        if not isinstance(value, Number):
            return self.floating(value) if is_floating(dtype) else value
        if value.source is not None:
            return self.held(*value.source, dtype)
        number = value.value
        if not is_floating(dtype) and dtype != "bool":
            low, high = BYTES.get(dtype, (-(2**31), 2**31 - 1))
            number = float(min(max(number, low), high))
        return self.number(number, dtype)

    # -- composites ---------------------------------------------------------------------------
    def reciprocal(self, x: Vectors, positive: bool = False) -> Vectors:
        x = self.floating(x)
        root = self.apply("rsqrt", x if positive else self.apply("abs", x))
        square = self.apply("multiply", root, root)
        if positive:
            return square
        below = self.compare("greater", self.number(0, WIDE), x)
        return self.select(below, self.apply("negate", square), square)

    def sqrt(self, x: Vectors) -> Vectors:
        x, zero = self.floating(x), self.number(0, WIDE)
        root = self.apply("multiply", x, self.apply("rsqrt", x))
        return self.select(self.compare("equal", x, zero), x, root)

    def sigmoid(self, x: Vectors) -> Vectors:
        half = self.number(0.5, WIDE)
        inner = self.apply("tanh", self.apply("multiply", self.floating(x), half))
        return self.apply("add", self.apply("multiply", inner, half), half)

    def round(self, x: Vectors) -> Vectors:
        x = self.floating(x)
        return self.converted(self.converted(x, "int32"), WIDE)

    def floor(self, x: Vectors) -> Vectors:
        x = self.floating(x)
        near, one = self.round(x), self.number(1, WIDE)
        above = self.compare("greater", near, x)
        return self.select(above, self.apply("subtract", near, one), near)

    def truncated(self, x: Vectors) -> Vectors:
        """Cut towards zero."""
        size = self.floor(self.apply("abs", self.floating(x)))
        below = self.compare("greater", self.number(0, WIDE), x)
        return self.select(below, self.apply("negate", size), size)

    def erf(self, x: Vectors) -> Vectors:
        x = self.floating(x)
        if self.short:
            return self._short_erf(x)
        size, one = self.apply("abs", x), self.number(1, WIDE)
        scaled = self.apply("multiply", size, self.number(_ERF_P, WIDE))
        t = self.reciprocal(self.apply("add", scaled, one), positive=True)
        total = self.number(_ERF[-1], WIDE)
        for factor in reversed(_ERF[:-1]):
            total = self.apply("add", self.apply("multiply", total, t), self.number(factor, WIDE))
        power = self.apply("exp", self.apply("negate", self.apply("multiply", size, size)))
        rest = self.apply("multiply", self.apply("multiply", total, t), power)
        value = self.apply("subtract", one, rest)
        below = self.compare("greater", self.number(0, WIDE), x)
        return self.select(below, self.apply("negate", value), value)

    def _short_erf(self, x: Vectors) -> Vectors:
        bounded = self.number(_SATURATED, WIDE)
        square = self.apply("minimum", self.apply("multiply", x, x), bounded)
        total = self.number(_SHORT_ERF[0], WIDE)
        for factor in _SHORT_ERF[1:]:
            product = self.apply("multiply", square, total)
            total = self.apply("add", product, self.number(factor, WIDE))
        return self.apply("tanh", self.apply("multiply", x, total))


def _is_literal(value: Vectors) -> bool:
    """Whether a value is a number of the program text, which is of whatever type is wanted."""
    return isinstance(value, Number) and value.source is None


_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
_DIRECT = {"negate": "negate", "absolute": "abs"}
_FLOATING = ("exp", "tanh")

_COMPARISONS: dict[str, Callable[[Algebra, Vectors, Vectors], Vectors]] = {
    "greater": lambda g, a, b: g.compare("greater", a, b),
    "less": lambda g, a, b: g.compare("greater", b, a),
    "equal": lambda g, a, b: g.compare("equal", a, b),
    "greater_equal": lambda g, a, b: g.apply(
        "or", g.compare("greater", a, b), g.compare("equal", a, b), dtype="bool"
    ),
    "less_equal": lambda g, a, b: g.apply(
        "or", g.compare("greater", b, a), g.compare("equal", a, b), dtype="bool"
    ),
    "and": lambda g, a, b: g.apply("and", g.flag(a), g.flag(b), dtype="bool"),
    "or": lambda g, a, b: g.apply("or", g.flag(a), g.flag(b), dtype="bool"),
    "xor": lambda g, a, b: g.apply(
        "and",
        g.apply("or", g.flag(a), g.flag(b), dtype="bool"),
        g.apply("not", g.apply("and", g.flag(a), g.flag(b), dtype="bool"), dtype="bool"),
        dtype="bool",
    ),
}

_UNARY: dict[str, Callable[[Algebra, Vectors], Vectors]] = {
    "sqrt": lambda g, x: g.sqrt(x),
    "sigmoid": lambda g, x: g.sigmoid(x),
    "round": lambda g, x: g.round(x),
    "floor": lambda g, x: g.floor(x),
    "ceil": lambda g, x: g.apply("negate", g.floor(g.apply("negate", g.floating(x)))),
    "erf": lambda g, x: g.erf(x),
    "log": logarithm,
    "sin": sine,
    "cos": lambda g, x: sine(g, x, quarters=True),
    "not": lambda g, x: g.apply("not", g.flag(x), dtype="bool"),
    "is_nan": lambda g, x: g.apply("not", g.compare("equal", x, x), dtype="bool"),
    "is_inf": lambda g, x: g.compare(
        "greater", g.apply("abs", g.floating(x)), g.number(3.4028234e38, WIDE)
    ),
    "to_bool": lambda g, x: g.flag(x),
    "to_float32": lambda g, x: g.floating(x),
    "to_int32": lambda g, x: _to_int32(g, x),
    "to_int8": lambda g, x: _to_byte(g, x, "int8"),
    "to_uint8": lambda g, x: _to_byte(g, x, "uint8"),
}


def _whole(value: Vectors) -> bool:
    """Whether a floating value is a whole number for sure: it was rounded, or is the sum, or the
    greater or less, of such."""
    match value:
        case Number(number):
            return not is_floating(value.dtype) or number == round(number)
        case Applied("convert", (inner,), dtype) if dtype == WIDE:
            return not is_floating(inner.dtype)
        case Applied("add" | "subtract" | "maximum" | "minimum" | "multiply", operands):
            return all(map(_whole, operands))
        case _:
            return not is_floating(value.dtype)


def _to_int32(g: Algebra, x: Vectors) -> Vectors:
    if not is_floating(x.dtype):
        return x if x.dtype != "bool" else g.converted(x, "int32")
    match x:
        case Applied("convert", (Applied(dtype="int32") as inner,), dtype) if dtype == WIDE:
            return inner
    return g.converted(x if _whole(x) else g.truncated(x), "int32")


def _to_byte(g: Algebra, x: Vectors, dtype: str) -> Vectors:
    """Bytes of a floating value, or of a whole one that is cut to their range already."""
    if is_floating(x.dtype):
        return g.converted(x if _whole(x) else g.truncated(x), dtype)
    low, high = BYTES[dtype]
    match x:
        case Applied(
            "minimum", (Applied("maximum", (inner, Number(least)), "int32"), Number(most)), "int32"
        ) if (least, most) == (low, high):
            return g.converted(inner, dtype)
    if x.dtype in ("bool", dtype):
        return g.converted(x, dtype)
    raise CodegenError(f"whole numbers wrap around in {dtype}, which VXM saturates")


def _one_over(g: Algebra, value: Scalar, leaf: Callable[[Scalar], Vectors]) -> Vectors:
    """The reciprocal of an expression: of a number at compile time, of a root by one function."""
    match value:
        case Const(number) if number and math.isfinite(1 / number):
            return g.number(1 / number, "float32")
        case Call("sqrt", (inner,)):
            return g.apply("rsqrt", g.floating(build(g, inner, leaf)))
        case _:
            return g.reciprocal(build(g, value, leaf))


def build(g: Algebra, value: Scalar, leaf: Callable[[Scalar], Vectors]) -> Vectors:
    """The graph of an expression; `leaf` gives that of all that is no call.

    Raises:
        CodegenError: VXM has no such function.
    """
    match value:
        case Const(number):
            return g.number(number, WIDE)
        case Call("where", (flag, then, otherwise)):
            parts = [build(g, part, leaf) for part in (flag, then, otherwise)]
            return g.select(*parts)
        case Call("divide", (a, b)):
            return g.binary("multiply", build(g, a, leaf), _one_over(g, b, leaf))
        case Call("reciprocal", (a,)):
            return _one_over(g, a, leaf)
        case Call("power", (base, Const(exponent))):
            return power(g, build(g, base, leaf), exponent)
        case Call(name, arguments) if name in (
            *_BINARY,
            *_DIRECT,
            *_FLOATING,
            *_COMPARISONS,
            *_UNARY,
        ):
            operands = [build(g, argument, leaf) for argument in arguments]
            if name in _BINARY:
                return g.binary(name, *operands)
            if name in _COMPARISONS:
                return _COMPARISONS[name](g, *operands)
            if name in _UNARY:
                return _UNARY[name](g, *operands)
            if name in _DIRECT:
                kind = WIDE if is_floating(operands[0].dtype) else "int32"
                return g.apply(_DIRECT[name], operands[0], dtype=kind)
            return g.apply(name, g.floating(operands[0]))
        case Call(name):
            raise CodegenError(f"VXM has no function '{name}'")
        case _:
            return leaf(value)
