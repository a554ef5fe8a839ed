"""LLVM types of our dtypes, and the few constants every emitter needs."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from search_space.errors import CodegenError

INDEX = ir.IntType(64)
POINTER = ir.PointerType()
VOID = ir.VoidType()

_TYPES: dict[str, ir.Type] = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int64": ir.IntType(64),
    "int32": ir.IntType(32),
    "int8": ir.IntType(8),
    "uint8": ir.IntType(8),
    "bool": ir.IntType(8),
}

ALIGNMENT = 64
"""Bytes: every buffer a kernel is given starts on a cache line (which is one 512-bit vector)."""


def element_type(dtype: str) -> ir.Type:
    """The LLVM type of one element.

    Raises:
        CodegenError: the dtype has no CPU code generation.
    """
    if dtype not in _TYPES:
        raise CodegenError(f"no CPU code for dtype '{dtype}'; one of {', '.join(_TYPES)}")
    return _TYPES[dtype]


def is_float(kind: ir.Type) -> bool:
    """Whether a scalar or vector type is of floating point."""
    scalar = kind.element if isinstance(kind, ir.VectorType) else kind
    return isinstance(scalar, ir.FloatType | ir.DoubleType)


def lanes_of(value: ir.Value) -> int:
    """Vector lanes of a value; 0 for a scalar."""
    return int(value.type.count) if isinstance(value.type, ir.VectorType) else 0


def zero(kind: ir.Type) -> ir.Constant:
    """A zero of a scalar or vector type."""
    return literal(kind, 0.0)


class _Short(ir.Constant):  # type: ignore[misc]
    """A constant vector that is written as one word, not element by element."""

    def __init__(self, kind: ir.VectorType, constant: object, word: str) -> None:
        self.type = kind
        self.constant = constant
        self._word = word

    def _get_reference(self) -> str:
        return self._word


_literals: dict[tuple[str, str], ir.Constant] = {}
_undefined: dict[str, ir.Constant] = {}


def literal(kind: ir.Type, number: float) -> ir.Constant:
    """A number as constant of a scalar or (splat) vector type; integers stay in their range.

    Kept for the next use: a kernel names few constants, thousands of times, and a constant keeps
    its text.
    """
    key = (str(kind), repr(number))
    known = _literals.get(key)
    if known is None:
        if len(_literals) > 4096:
            _literals.clear()
        known = _literals[key] = _literal(kind, number)
    return known


def _literal(kind: ir.Type, number: float) -> ir.Constant:
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [literal(kind.element, number)] * kind.count)
    if isinstance(kind, ir.IntType):
        limit = 1 << (kind.width - 1)
        return ir.Constant(kind, int(min(max(number, -limit), limit - 1)))
    return ir.Constant(kind, float(number))


def undefined(kind: ir.VectorType) -> ir.Constant:
    """A vector that nobody has filled yet."""
    key = str(kind)
    if key not in _undefined:
        _undefined[key] = _Short(kind, ir.Undefined, "undef")
    return _undefined[key]


@cache
def first_lanes(width: int) -> ir.Constant:
    """The shuffle order that repeats lane zero."""
    lane = ir.IntType(32)
    return _Short(ir.VectorType(lane, width), [lane(0)] * width, "zeroinitializer")


def suffix(kind: ir.Type) -> str:
    """How LLVM's overloaded intrinsics spell a scalar type."""
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return "f64" if isinstance(kind, ir.DoubleType) else "f32"
