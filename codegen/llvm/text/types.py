"""LLVM types of our dtypes, and the alignment of buffers."""

from tilesmith.codegen.llvm.text.ir import (
    DOUBLE,
    FLOAT,
    FloatType,
    IntType,
    NarrowFloat,
    Type,
    integer,
    scalar_of,
)
from tilesmith.search_space.expressions.dtypes import NAMES, is_narrow
from tilesmith.search_space.support.errors import CodegenError

_TYPES: dict[str, IntType | FloatType] = {
    "float32": FLOAT,
    "float64": DOUBLE,
    "int64": integer(64),
    "int32": integer(32),
    "int16": integer(16),
    "int8": integer(8),
    "uint64": integer(64, "unsigned"),
    "uint32": integer(32, "unsigned"),
    "uint16": integer(16, "unsigned"),
    "uint8": integer(8, "unsigned"),
    "bool": integer(8),
    **{name: NarrowFloat(name) for name in NAMES if is_narrow(name)},
}

ALIGNMENT = 64
"""Bytes: a kernel's own buffers start on a cache line (which is one 512-bit vector), so that their
vectors do not cross two. What a kernel is given may lie anywhere its elements are aligned (a part
of a larger tensor): vectors are loaded and stored at the alignment of one element."""


def element_type(dtype: str) -> IntType | FloatType:
    """The LLVM type of one element.

    Raises:
        CodegenError: the dtype has no CPU code generation.
    """
    if dtype not in _TYPES:
        raise CodegenError(f"no CPU code for dtype '{dtype}'; one of {', '.join(_TYPES)}")
    return _TYPES[dtype]


def is_float(kind: Type) -> bool:
    """Whether a scalar or vector type is of floating point."""
    return isinstance(scalar_of(kind), FloatType)


def suffix(kind: IntType | FloatType) -> str:
    """How LLVM's overloaded intrinsics spell a scalar type."""
    return f"{'i' if isinstance(kind, IntType) else 'f'}{kind.width}"
