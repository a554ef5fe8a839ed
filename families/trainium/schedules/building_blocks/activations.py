"""Functions of one argument that are one activation of the scalar engine, and how they are told.

Formulas are expanded when a schedule or a generator sees them: silu is a product, gelu one with
erf, 1 / sqrt(x) a reciprocal. What one instruction computes is one function again.
"""

from tilesmith.search_space.expressions.scalar import Call, Scalar
from tilesmith.search_space.operator_parts.fusion import pointwise

UNARY = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "erf": "erf",
    "sigmoid": "sigmoid", "absolute": "abs", "silu": "silu", "gelu": "gelu",
    "gelu_tanh": "gelu_tanh", "sin": "sin",
}  # fmt: skip


FORMULA = "multiply"
"""The last operation of each formula that is one activation."""


def simplify(value: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """(function, arguments) of a call; formulas that one activation computes become that."""
    if not isinstance(value, Call):
        return None
    first = value.arguments[0]
    if value.function == "reciprocal" and isinstance(first, Call) and first.function == "sqrt":
        return "rsqrt", first.arguments
    inner = first.arguments[0] if isinstance(first, Call) else first
    for name, argument in (("silu", first), ("gelu", inner), ("gelu_tanh", inner)):
        if value.function == FORMULA and value == pointwise(name, argument):
            return name, (argument,)
    return value.function, value.arguments
