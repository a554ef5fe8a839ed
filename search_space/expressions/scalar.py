"""Scalar expressions: the value one point of a stage or block computes.

    Scalar = Const(number) | Load(buffer, indices) | Call(function, arguments)
           | Select(condition, a, b) | Index(expression)

A condition is a tuple of index expressions that must all be >= 0 (a box test, which is all that
padding and tails need). `FUNCTIONS` is the one table of what may be called; code generators and the
interpreter implement exactly these.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard

from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr
from tilesmith.search_space.support.errors import ScheduleError
from tilesmith.search_space.support.suggestions import unknown

FUNCTIONS: Mapping[str, int] = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "maximum": 2, "minimum": 2, "power": 2,
    "negate": 1, "absolute": 1, "exp": 1, "log": 1, "sqrt": 1, "reciprocal": 1, "tanh": 1, "erf": 1,
    "sigmoid": 1, "floor": 1, "ceil": 1, "round": 1,
    "greater_equal": 2, "where": 3, "modulo": 2,
    "sin": 1, "cos": 1,
    "equal": 2, "greater": 2, "less": 2, "less_equal": 2, "is_nan": 1, "is_inf": 1,
    "and": 2, "or": 2, "xor": 2, "not": 1,
    "to_float32": 1, "to_int64": 1, "to_int32": 1, "to_bool": 1,
    "to_int8": 1, "to_uint8": 1, "to_int16": 1, "to_uint16": 1,
    "to_float64": 1, "to_uint32": 1, "to_uint64": 1,
    "ordinal": 1,
    "sinh": 1, "cosh": 1, "asin": 1, "acos": 1, "atan": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "bit_and": 2, "bit_or": 2, "bit_xor": 2, "bit_not": 1, "shift_left": 2, "shift_right": 2,
}  # fmt: skip
"""Function names and their number of arguments.

Comparisons, tests and logic give a flag, which is 1 or 0 as a number; `where` takes a flag, or what
is not zero, first. What is not a number stays so: `maximum` and `minimum` are NaN where either
argument is (as numpy's and ONNX's are), and so are the reductions made of them; of two zeros they
may give either. Whole numbers wrap around; their quotient is cut towards zero, `modulo` has the
sign of its second argument, both are 0 where that is 0. Converting to whole numbers cuts towards
zero; what is too large becomes the nearest there is, not-a-number becomes 0. `ordinal` of a number
of at most 32 bits is an int32 that orders as the numbers do, not-a-number beyond infinity (below
-infinity if its sign is set); of two zeros both are the same. Shifting by as many bits as there
are, or by a negative number, leaves 0, or to the right the sign alone."""

COMPOSITES: Mapping[str, int] = {
    "add_constant": 2, "multiply_constant": 2, "relu": 1, "leaky_relu": 2, "clip": 3,
    "hard_sigmoid": 3, "hard_swish": 1, "silu": 1, "gelu": 1, "gelu_tanh": 1,
}  # fmt: skip
"""Functions of a value and numbers that `formula.expanded` puts together from those above, with
their number of arguments: formulas call them, stages and programs do not."""

_ARITIES = {**FUNCTIONS, **COMPOSITES}

FLAGS = frozenset(
    {
        "equal", "greater", "greater_equal", "less", "less_equal", "is_nan", "is_inf", "and", "or",
        "xor", "not", "to_bool",
    }
)  # fmt: skip
"""Functions that give flags."""

CONVERSIONS: Mapping[str, str] = {n: n[3:] for n in FUNCTIONS if n.startswith("to_")}
"""Element types by the functions that convert to them."""


class Reducer(NamedTuple):
    """How a reduction combines elements.

    Attributes:
        function: of two elements, one of `FUNCTIONS`.
        identity: what an empty reduction gives, and what changes nothing.
        sign: how a printed program writes it.
    """

    function: str
    identity: float
    sign: str


REDUCTIONS: Mapping[str, Reducer] = {
    "sum": Reducer("add", 0.0, "+="),
    "max": Reducer("maximum", float("-inf"), "max="),
    "max_number": Reducer("maximum", float("-inf"), "max_number="),
    "min": Reducer("minimum", float("inf"), "min="),
    "product": Reducer("multiply", 1.0, "*="),
}
"""All there is to say of a reduction, by its name. A `max_number` is not asked what is no number:
that may count as nothing, or be what comes of it."""

REDUCERS: Mapping[str, float] = {name: one.identity for name, one in REDUCTIONS.items()}
"""Their identities."""

Condition = tuple[Expr, ...]


@dataclass(frozen=True)
class Const:
    """A literal number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.9g}"


@dataclass(frozen=True)
class Load:
    """An element of a tensor (in a stage) or buffer (in a program)."""

    buffer: str
    indices: tuple[Expr, ...]

    @cached_property
    def hash_(self) -> int:
        return hash((self.buffer, self.indices))

    def __hash__(self) -> int:
        return self.hash_

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True)
class Call:
    """A function of `FUNCTIONS` (in a formula: or of `COMPOSITES`) applied to scalars."""

    function: str
    arguments: "tuple[Scalar, ...]"

    def __post_init__(self) -> None:
        assert _ARITIES[self.function] == len(self.arguments), self.function

    def __str__(self) -> str:
        infix = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}.get(self.function)
        if infix:
            return f"({self.arguments[0]} {infix} {self.arguments[1]})"
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Select:
    """`then` where all of `condition` is >= 0, else `otherwise`; only one is evaluated."""

    condition: Condition
    then: "Scalar"
    otherwise: "Scalar"

    def __str__(self) -> str:
        return f"({self.then} if {condition_text(self.condition)} else {self.otherwise})"


@dataclass(frozen=True)
class Index:
    """An index expression as a whole number (int64): where an element stands."""

    expression: Expr

    def __str__(self) -> str:
        return f"index({self.expression})"


Scalar = Const | Load | Call | Select | Index


def condition_text(condition: Condition) -> str:
    return " and ".join(f"{e} >= 0" for e in condition)


def check_reducer(reducer: str | None, where: str) -> None:
    """Raise `ScheduleError` unless `reducer` is one of `REDUCERS`, or None: no reduction.

    Args:
        where: what reduces, for the message.
    """
    if reducer is not None and reducer not in REDUCERS:
        raise unknown(f"reducer of {where}:", reducer, REDUCERS, ScheduleError)


def call(function: str, *arguments: Scalar | float) -> Call:
    """`Call` with plain numbers allowed: `call("maximum", x, 0.0)`."""
    return Call(function, tuple(Const(a) if isinstance(a, int | float) else a for a in arguments))


def load(buffer: str, *indices: ExprLike) -> Load:
    """`Load` with plain integers allowed as indices."""
    from tilesmith.search_space.expressions.expression import as_expr

    return Load(buffer, tuple(as_expr(index) for index in indices))


def loads(value: Scalar) -> Iterator[Load]:
    """Every load in a scalar, left to right."""
    match value:
        case Load():
            yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from loads(argument)
        case Select(then=then, otherwise=otherwise):
            yield from loads(then)
            yield from loads(otherwise)


def constants(value: Scalar) -> Iterator[float]:
    """Every number in a scalar, left to right; those of a condition are not looked at."""
    match value:
        case Const(number):
            yield float(number)
        case Call(arguments=arguments):
            for argument in arguments:
                yield from constants(argument)
        case Select(then=then, otherwise=otherwise):
            yield from constants(then)
            yield from constants(otherwise)


def expressions(value: Scalar) -> Iterator[Expr]:
    """Every index expression in a scalar."""
    match value:
        case Load(indices=indices):
            yield from indices
        case Call(arguments=arguments):
            for argument in arguments:
                yield from expressions(argument)
        case Select(condition, then, otherwise):
            yield from condition
            yield from expressions(then)
            yield from expressions(otherwise)
        case Index(expression):
            yield expression


def rewrite(
    value: Scalar,
    index: Callable[[Expr], Expr],
    access: Callable[[Load], Scalar] = lambda load: load,
) -> Scalar:
    """Rebuild a scalar: every index expression mapped by `index`, then every load by `access`."""
    match value:
        case Const():
            return value
        case Load(buffer, indices):
            return access(Load(buffer, tuple(index(i) for i in indices)))
        case Call(function, arguments):
            return Call(function, tuple(rewrite(a, index, access) for a in arguments))
        case Select(condition, then, otherwise):
            return Select(
                tuple(index(e) for e in condition),
                rewrite(then, index, access),
                rewrite(otherwise, index, access),
            )
        case Index(expression):
            return Index(index(expression))


def substitute(value: Scalar, values: Mapping[str, ExprLike]) -> Scalar:
    """Replace index variables."""
    return rewrite(value, lambda index: index.substitute(values))


def functions(value: Scalar) -> frozenset[str]:
    """Names of the functions it calls."""
    match value:
        case Call(function, arguments):
            return frozenset((function,)).union(*map(functions, arguments))
        case Select(then=then, otherwise=otherwise):
            return functions(then) | functions(otherwise)
        case _:
            return frozenset()


def operations(value: Scalar) -> int:
    """How many function calls it holds (each counts one operation)."""
    match value:
        case Call(arguments=arguments):
            return 1 + sum(operations(a) for a in arguments)
        case Select(then=then, otherwise=otherwise):
            return max(operations(then), operations(otherwise))
        case _:
            return 0


def is_product(value: Scalar) -> TypeGuard[Call]:
    """Whether a value is a product, which one instruction may multiply and add."""
    return isinstance(value, Call) and value.function == "multiply"


def erfc_argument(value: Scalar) -> Scalar | None:
    """z where a value is written 1 + erf(-z) or 1 - erf(z): erfc(z), which cancels there."""
    match value:
        case Call("subtract", (Const(1), Call("erf", (z,)))):
            return z
        case Call("add", (Const(1), Call("erf", (z,))) | (Call("erf", (z,)), Const(1))):
            return call("negate", z)
        case _:
            return None


def share_of(count: ExprLike) -> Scalar:
    """1 / count, which a mean is multiplied by: folded into the code unless it varies."""
    number = as_expr(count).constant
    if number is not None:
        return Const(1.0 / number)
    return call("reciprocal", call("to_float32", Index(as_expr(count))))
