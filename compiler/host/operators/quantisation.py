"""QuantizeLinear and DequantizeLinear on the host, at every opset.

    q = saturate(round(x / scale) + zero point)        x = (q - zero point) * scale

`onnx.reference` has the latter from opset 19 on only, and its quantisation of numbers beyond int32
wraps around instead of saturating. Scale and zero point are one number, one for each place along an
axis (from opset 13), or one for each block of places along it (from opset 21). Source: ONNX's
operators, QuantizeLinear and DequantizeLinear 10 to 25. Invariant: halves round to the even
neighbour; differences of integers are taken in int32, in which none of theirs overflows.
"""

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator


@host_operator("DequantizeLinear")
def dequantize_linear(call: OperatorCall) -> Results:
    """x, scale and (if there is one) zero point to numbers of the scale's or the asked dtype.

    Raises:
        ValueError: scale or zero point do not go with x.
    """
    (x, scale, *rest), attributes = call.inputs, call.attributes
    axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
    number = int(attributes.get("output_dtype", 0))
    dtype = helper.tensor_dtype_to_np_dtype(number) if number else scale.dtype
    wide = x.astype(np.int32 if _is_integer(x) else np.float32)
    if rest and _is_integer(x):
        wide = wide - spread(rest[0], x.shape, axis, block).astype(np.int32)
    factor = spread(scale, x.shape, axis, block).astype(np.float32)
    return (np.asarray(wide.astype(np.float32) * factor).astype(dtype),)


@host_operator("QuantizeLinear")
def quantize_linear(call: OperatorCall) -> Results:
    """Numbers to the zero point's or the asked element type, uint8 where there is neither.

    Raises:
        ValueError: scale or zero point do not go with x.
    """
    x, scale, zero = call.inputs[0], call.inputs[1], call.input(2)
    attributes = call.attributes
    axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if zero is None and attributes.get("output_dtype", 0):
        dtype = helper.tensor_dtype_to_np_dtype(int(attributes["output_dtype"]))
    number = int(attributes.get("precision", 0))
    precision = helper.tensor_dtype_to_np_dtype(number) if number else np.result_type(scale, x)
    factor = spread(scale, x.shape, axis, block).astype(precision)
    quotient = np.asarray(x.astype(precision) / factor)
    if _is_integer(np.empty(0, dtype)):
        shift = 0 if zero is None else spread(zero, x.shape, axis, block).astype(np.float64)
        limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        rounded = np.rint(quotient.astype(np.float64)) + shift
        return (np.asarray(np.clip(rounded, limits.min, limits.max)).astype(dtype),)
    if attributes.get("saturate", 1) and "float8" in dtype.name:
        return (numpy_helper.saturate_cast(quotient, dtype),)
    return (quotient.astype(dtype),)


def _is_integer(x: Array) -> bool:
    """Also of four and two bits, which numpy does not know for integers."""
    return "int" in x.dtype.name


def spread(value: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point in a form that broadcasts to `shape`.

    Raises:
        ValueError: it has not one number for each place, or block of places, along the axis.
    """
    if value.size == 1 and value.ndim <= 1:
        return value.reshape(())
    if not block:
        extents = [1] * len(shape)
        extents[axis] = shape[axis]
        return value.reshape(extents)
    whole = np.repeat(value, block, axis=axis)
    cut = [slice(None)] * len(shape)
    cut[axis] = slice(shape[axis])
    return whole[tuple(cut)]


@host_operator("Quantise")
def quantise(call: OperatorCall) -> Results:
    """Internal: numbers to bytes, by one scale and one zero point."""
    x, scale, zero = call.inputs
    limits = np.iinfo(zero.dtype)
    with np.errstate(all="ignore"):
        rounded = np.rint((x / scale).astype(np.float64)) + zero.astype(np.float64)
    return (np.asarray(np.clip(np.nan_to_num(rounded), limits.min, limits.max), zero.dtype),)


@host_operator("Dequantise")
def dequantise(call: OperatorCall) -> Results:
    """Internal: bytes to numbers, by one scale and one zero point."""
    x, scale, zero = call.inputs
    numbers = (x.astype(np.float32) - zero.astype(np.float32)) * scale
    return (np.asarray(numbers, np.float32),)
