"""What the units between streams compute, on blocks of vectors of shape (count, 320).

VXM calculates in float32 and int32; int32 wraps round. MXM sums exactly: bytes in int32, float16 in
float32 rounded once for all of a sum's (at most 320) products. (A sum of products of float16 is
formed in float64, whose error is far below half a unit of float32.)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import LANES, SUPERLANE, Operation

Vectors = NDArray[Any]

_WHOLE = {"int32", "int8", "uint8"}

_kind = lru_cache(maxsize=64)(np.dtype)
"""numpy's type of a name; comparing types is far quicker than asking one for its name."""


def converted(value: Vectors, dtype: str) -> Vectors:
    """To another type: whole numbers are rounded to nearest even and saturate, floats rounded."""
    if value.dtype == _kind(dtype):
        return value
    if dtype == "bool":
        return np.asarray(value != 0)
    if dtype in _WHOLE:
        limits = np.iinfo(dtype)
        wide = np.rint(value.astype(np.float64))
        wide = np.where(np.isnan(wide), 0.0, wide)
        return np.clip(wide, limits.min, limits.max).astype(dtype)
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def _widened(value: Vectors, dtype: str) -> Vectors:
    """An operand as an ALU of that type takes it."""
    return value.astype(_kind(dtype), copy=False)


_UNARY: dict[str, Callable[[Vectors], Vectors]] = {
    "negate": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "tanh": np.tanh,
    "exp": np.exp,
    "rsqrt": lambda x: (1.0 / np.sqrt(x)).astype(np.float32),
    "not": np.logical_not,
}
_BINARY: dict[str, Callable[[Vectors, Vectors], Vectors]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater": np.greater,
    "equal": np.equal,
    "and": np.logical_and,
    "or": np.logical_or,
}
_COMPARISONS = ("greater", "equal")


def operate(operation: Operation, operands: Sequence[Vectors]) -> Vectors:
    """One ALU."""
    function, dtype = operation.function, operation.dtype
    with np.errstate(all="ignore"):
        if function in ("copy", "convert"):
            return converted(operands[0], dtype)
        if function == "select":
            condition, then, otherwise = operands
            chosen = np.where(condition, _widened(then, dtype), _widened(otherwise, dtype))
            return chosen.astype(dtype)
        if function in _COMPARISONS:
            wide = np.result_type(*operands)
            kind = np.float32 if wide.kind == "f" else np.int32
            return _BINARY[function](*(x.astype(kind) for x in operands))
        if dtype == "bool":
            logical = [x != 0 for x in operands]
            table: Any = _UNARY if len(logical) == 1 else _BINARY
            return np.asarray(table[function](*logical))
        at = (
            dtype if dtype in ("float32", "int32") else "float32" if dtype == "float16" else "int32"
        )
        wide_operands = [_widened(x, at) for x in operands]
        calculate: Any = _UNARY if len(operands) == 1 else _BINARY
        return converted(np.asarray(calculate[function](*wide_operands)).astype(at), dtype)


def computed(
    operations: Sequence[Operation], results: Sequence[int], inputs: Sequence[Vectors]
) -> list[Vectors]:
    """VXM: the results of an expression."""
    values = list(inputs)
    for operation in operations:
        operands = [
            values[o] if o >= 0 else _immediate(operation, values[0]) for o in operation.operands
        ]
        values.append(operate(operation, operands))
    return [values[result] for result in results]


def _immediate(operation: Operation, like: Vectors) -> Vectors:
    number = 0.0 if operation.immediate is None else operation.immediate
    whole = operation.dtype in _WHOLE or (operation.dtype == "bool" and like.dtype.kind in "iu")
    kind = np.int32 if whole and float(number).is_integer() else np.float32
    return np.full((1, 1), number, kind)


def multiplied(moving: Vectors, weights: Vectors, first: int, k: int) -> Vectors:
    """MXM: sums of moving vectors (count, 320) with weights (columns, 320), lanes first to k."""
    kind: Any = np.float64 if moving.dtype == np.float16 else np.float32  # bytes: exact in it
    with np.errstate(all="ignore"):
        left: NDArray[np.floating[Any]] = moving[:, first:k].astype(kind)
        right: NDArray[np.floating[Any]] = weights[:, first:k].astype(kind)
        sums = left @ right.T
        result = "float32" if moving.dtype == np.float16 else "int32"
        products = np.zeros((len(moving), LANES), result)
        products[:, : len(weights)] = sums.astype(result)
    return products


def shuffled(value: Vectors, lanes: Sequence[int]) -> Vectors:
    """SXM: lane l of the result is lane lanes[l], or 0."""
    source, empty = _sources(tuple(lanes))
    moved = np.take(value, source, axis=1)
    if len(empty):
        moved[:, empty] = 0
    return moved


@lru_cache(maxsize=1 << 10)
def _sources(lanes: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where lanes come from, and those that come from nowhere; programs have few such lists."""
    source = np.array(lanes)
    return np.maximum(source, 0), np.flatnonzero(source < 0)


def transposed(inputs: Sequence[Vectors]) -> list[Vectors]:
    """SXM: 16 x 16 in every superlane."""
    whole = np.stack(inputs, axis=1)  # vector, i, lane
    count = len(whole)
    blocks = whole.reshape(count, SUPERLANE, LANES // SUPERLANE, SUPERLANE)
    turned = blocks.transpose(0, 3, 2, 1).reshape(count, SUPERLANE, LANES)
    return [np.ascontiguousarray(turned[:, j]) for j in range(SUPERLANE)]
