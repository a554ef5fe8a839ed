"""LLVM types of our dtypes, and the few constants every emitter needs."""

from __future__ import annotations

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


def literal(kind: ir.Type, number: float) -> ir.Constant:
    """A number as constant of a scalar or (splat) vector type; integers stay in their range."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [literal(kind.element, number)] * kind.count)
    if isinstance(kind, ir.IntType):
        limit = 1 << (kind.width - 1)
        return ir.Constant(kind, int(min(max(number, -limit), limit - 1)))
    return ir.Constant(kind, float(number))


def suffix(kind: ir.Type) -> str:
    """How LLVM's overloaded intrinsics spell a scalar type."""
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return "f64" if isinstance(kind, ir.DoubleType) else "f32"
