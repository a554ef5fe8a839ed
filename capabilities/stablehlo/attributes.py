"""Reads what MLIR says of operations: types, attributes, places, constants.

Invariant: constants are views of the module's memory where numpy has their element type.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.bindings import mlir
from tilesmith.search_space.expressions.dtypes import size_of, to_numpy
from tilesmith.search_space.support.errors import ModelError

Shape = tuple[int, ...]

_DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "i1": "bool", "i2": "int2", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "ui2": "uint2", "ui4": "uint4", "ui8": "uint8", "ui16": "uint16",
    "ui32": "uint32", "ui64": "uint64",
    "complex<f32>": "float32", "complex<f64>": "float64",
}  # fmt: skip
"""Tilesmith's names of MLIR's element types; of complex numbers, that of each part."""

_MOST_BYTES = 1 << 40
"""Of one tensor; more no machine that runs a model holds."""


@dataclass(frozen=True)
class TensorType:
    """Element type (of complex numbers, that of each part) and shape of a tensor."""

    dtype: str
    shape: Shape


def place_of(operation: Any) -> str:
    """The operation and where it comes from, for messages: `stablehlo.fft 'jit(f)/fft'`."""
    location = operation.location
    name = _named(location)
    return f"{operation.name} '{name}'" if name else f"{operation.name} at {_text(location)}"


def name_of(operation: Any) -> str:
    """The name an operation has from its framework, "" where it has none."""
    return _named(operation.location)


def _named(location: Any) -> str:
    if not hasattr(location, "name_str"):
        return ""
    try:
        return str(location.name_str).partition(":")[0]
    except (ValueError, TypeError, RuntimeError):
        return ""


def _text(location: Any) -> str:
    return str(location).removeprefix("loc(").removesuffix(")")[:80]


def tensor_type(mlir_type: Any, where: str) -> TensorType:
    """A value's type.

    Raises:
        ModelError: it is no tensor of known shape, of a known element type, that memory can hold.
    """
    ir = mlir()
    try:
        ranked = ir.RankedTensorType(mlir_type)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{where} has a value of type {mlir_type}; only tensors of known rank are supported"
        ) from error
    if not ranked.has_static_shape:
        raise ModelError(
            f"{where} has a value of type {mlir_type}, whose shape is not fixed; give the inputs "
            "shapes with --shape, or export the function for fixed shapes"
        )
    dtype = _DTYPES.get(str(ranked.element_type), "")
    if not dtype:
        raise ModelError(
            f"{where} has a value of type {mlir_type}; element types that are supported are "
            f"{', '.join(_DTYPES)}"
        )
    shape = tuple(int(extent) for extent in ranked.shape)
    if size_of(dtype) * float(np.prod([float(e) for e in shape])) > _MOST_BYTES:
        raise ModelError(f"{where} has a value of type {mlir_type}, more than a terabyte")
    return TensorType(dtype, shape)


def is_complex(mlir_type: Any) -> bool:
    """Whether a value's type is a tensor of complex numbers."""
    return "xcomplex<" in str(mlir_type) or str(mlir_type).startswith("tensor<complex<")


def integers(operation: Any, name: str, default: Shape = ()) -> Shape:
    """A list of integers."""
    attributes = operation.attributes
    return tuple(int(v) for v in attributes[name]) if name in attributes else default


def flags(operation: Any, name: str, count: int) -> tuple[bool, ...]:
    """A list of booleans, all false where left out."""
    attributes = operation.attributes
    return tuple(bool(v) for v in attributes[name]) if name in attributes else (False,) * count


def integer(operation: Any, name: str, default: int = 0) -> int:
    """One integer."""
    attributes = operation.attributes
    return int(attributes[name].value) if name in attributes else default


def text(operation: Any, name: str) -> str:
    """A text, or the word of an enumeration; "" where left out."""
    if name not in operation.attributes:
        return ""
    value = operation.attributes[name]
    return str(value.value) if hasattr(value, "value") else str(value)


def pairs(operation: Any, name: str, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each axis: padding; zeros where left out."""
    if name not in operation.attributes:
        return ((0, 0),) * count
    array = constant_array(operation.attributes[name], np.dtype(np.int64), (count, 2))
    return tuple((int(low), int(high)) for low, high in array)


def constant_array(value: Any, dtype: np.dtype, shape: Shape) -> NDArray[Any]:
    """A constant's numbers; one number for all, where they are equal, is an array of shape ().

    Raises:
        ValueError: they are kept in a way that is not supported.
    """
    if value.is_splat:
        numbers = np.asarray(value.get_splat_value().value).astype(dtype)
        return np.broadcast_to(numbers, shape) if dtype == np.int64 and len(shape) == 2 else numbers
    try:
        return np.array(value, copy=False).astype(dtype, copy=False).reshape(shape)
    except TypeError:  # numpy has no such element type
        return _unusual(value, dtype, shape)


def _unusual(value: Any, dtype: np.dtype, shape: Shape) -> NDArray[Any]:
    printed = str(value)
    if printed.startswith('dense<"0x'):
        digits = printed[len('dense<"0x') : printed.index('"', len('dense<"0x'))]
        return np.frombuffer(bytes.fromhex(digits), dtype).reshape(shape)
    return np.array([value[i] for i in range(len(value))]).astype(dtype).reshape(shape)


def constant_of(operation: Any) -> tuple[TensorType, NDArray[Any]]:
    """A constant operation's type, and its numbers as `constant_array` gives them.

    Raises:
        ModelError: it is kept in a way, or of an element type, that is not supported.
    """
    where = place_of(operation)
    kind = tensor_type(operation.results[0].type, where)
    try:
        value = operation.attributes["value"]
        return kind, constant_array(value, to_numpy(kind.dtype), kind.shape)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ModelError(
            f"{where} holds its numbers in a way that is not supported; dense elements are expected"
        ) from error
