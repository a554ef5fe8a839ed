"""MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv -> float32 products of whole numbers.

    MatMulInteger   (a - a0) (b - b0)                               int32
    QLinearMatMul   saturate(round((a - a0) (b - b0) sa sb / sy) + y0)

A sum of whole numbers below 2^24 is the same in float32, in whatever order it is taken; longer sums
of products are cut into such and added as int32. Convolutions are not cut: a schedule may
transform them, so what they give is rounded to the whole number it has to be. Scales are multiplied
and divided in the order ONNX Runtime does. Source: ONNX's operators, 10 on; zero points are one
number, one for each row of a, or one for each column (output channel) of the weights.
"""

import math

import numpy as np

from tilesmith.compiler.decompositions.quantisation import clipped
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics.whole_numbers import EXACT, NARROW, limits
from tilesmith.compiler.rewriting.decomposition import Composer, typed_decompositions

_BYTES = ("uint8", "int8")


@typed_decompositions.register("MatMulInteger")
def matmul_integer(composer: Composer, node: Node) -> str | None:
    a, b = node.inputs[:2]
    if not all(composer.dtype(name) in NARROW for name in (a, b)):
        return None
    if not all(len(composer.dims(name)) > 1 for name in (a, b)):
        return None
    return composer.cast(_whole_product(composer, (a, node.input(2)), (b, node.input(3))), "int32")


def _whole_product(composer: Composer, a: tuple[str, str], b: tuple[str, str]) -> str:
    """The product of two operands without their zero points: in float32 where no sum is too long
    for that, else the sum of such products in int32."""
    left, right = _rows(composer, *a), _columns(composer, *b)
    cuts = _pieces(composer, a, b, right)
    parts = [_product(composer, left, right, start, end) for start, end in cuts]
    if len(parts) == 1:
        return parts[0]
    total, *others = (composer.cast(part, "int32") for part in parts)
    for part in others:
        total = composer.pointwise("Add", total, part, dtype="int32")
    return total


def _pieces(
    composer: Composer, a: tuple[str, str], b: tuple[str, str], right: str
) -> list[tuple[int, int]]:
    """Cuts of the summed axis whose sums are exact; operands are those of `_whole_product`."""
    depth = composer.dims(a[0])[-1]
    most = _farthest(composer, *a)
    value = composer.value(right)
    if value is None:
        worst = np.full(depth, _farthest(composer, *b))
    else:
        worst = np.abs(value).reshape(-1, depth, value.shape[-1]).max(axis=(0, 2))
    cuts, start, total = [], 0, 0.0
    for place, weight in enumerate(worst):
        if total + most * float(weight) > EXACT:
            cuts.append((start, place))
            start, total = place, 0.0
        total += most * float(weight)
    return [*cuts, (start, depth)]


def _farthest(composer: Composer, name: str, zero: str) -> int:
    """How far from its zero point a number of a tensor may be."""
    low, high = limits(composer.dtype(name))
    return int(high - low if zero else max(high, -low))


def _product(composer: Composer, a: str, b: str, start: int, end: int) -> str:
    """Of a part of the summed axis."""
    if (start, end) != (0, composer.dims(a)[-1]):
        a = composer.cut(a, len(composer.dims(a)) - 1, start, end)
        value, axis = composer.value(b), len(composer.dims(b)) - 2
        if value is not None:
            b = composer.constant(np.ascontiguousarray(value[..., start:end, :]))
        else:
            b = composer.cut(b, axis, start, end)
    return composer.matmul(a, b)


@typed_decompositions.register("QLinearMatMul")
def qlinear_matmul(composer: Composer, node: Node) -> str | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    dtype = composer.dtype(node.writes[0])
    scales = (a_scale, b_scale, y_scale)
    if not all(composer.dtype(name) in _BYTES for name in (a, b)) or dtype not in _BYTES:
        return None
    if not all(composer.dtype(name) == "float32" for name in scales):
        return None
    if not all(len(composer.dims(name)) > 1 for name in (a, b)):
        return None
    total = composer.cast(_whole_product(composer, (a, a_zero), (b, b_zero)), "float32")
    one, two = _along(composer, a_scale, -2), _along(composer, b_scale, -1)
    factor = composer.exactly(
        "Div", composer.pointwise("Mul", one, two), _number(composer, y_scale)
    )
    return _requantised(composer, composer.pointwise("Mul", total, factor), y_zero, dtype)


def _requantised(composer: Composer, x: str, zero: str, dtype: str) -> str:
    rounded = composer.pointwise("Round", x)
    shift = _number(composer, composer.cast(zero, "float32"))
    return composer.cast(clipped(composer, composer.pointwise("Add", rounded, shift), dtype), dtype)


def _number(composer: Composer, name: str) -> str:
    """One number as a tensor without axes."""
    return composer.view(name, ()) if composer.dims(name) else name


def _along(composer: Composer, name: str, axis: int) -> str:
    """One number, or one for each place of the last axis or the one before it."""
    dims = composer.dims(name)
    if math.prod(dims) == 1:
        return _number(composer, name)
    if len(dims) > 1:  # one for each row or column of each matrix of a batch, spread already
        return name
    return composer.view(name, (dims[0], 1)) if axis == -2 else name


def _shifted(composer: Composer, name: str, zero: str) -> str:
    """x - zero point; computed at once where both are constant."""
    value, shift = composer.value(name), composer.value(zero) if zero else np.zeros(1)
    if value is not None and shift is not None and shift.size == 1:
        return composer.constant(value.astype(np.float32) - np.float32(shift.reshape(-1)[0]))
    wide = composer.cast(name, "float32")
    if not zero or (shift is not None and not shift.any()):
        return wide
    return composer.pointwise("Sub", wide, composer.cast(zero, "float32"))


def _rows(composer: Composer, name: str, zero: str) -> str:
    return _shifted(composer, name, _along(composer, zero, -2) if zero else "")


def _columns(composer: Composer, name: str, zero: str) -> str:
    value, shift = composer.value(name), composer.value(zero) if zero else None
    if value is not None and shift is not None and (shift.ndim < 2 or shift.ndim == value.ndim):
        return composer.constant(value.astype(np.float32) - shift.astype(np.float32))
    return _shifted(composer, name, _along(composer, zero, -1) if zero else "")


# -- convolutions -------------------------------------------------------------------------------
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _convolution(
    composer: Composer, node: Node, x: tuple[str, str], weight: tuple[str, str]
) -> str:
    """Of what is left without zero points, which is a whole number."""
    image, taps = _shifted(composer, *x), _weights(composer, *weight)
    stated = {name: node.attribute(name) for name in _CONV if node.attribute(name) is not None}
    shape = composer.dims(node.writes[0])
    return composer.apply("Conv", image, taps, shape=shape, **stated)


def _weights(composer: Composer, name: str, zero: str) -> str:
    """Zero points are one number, or one for each output channel."""
    value, shift = composer.value(name), composer.value(zero) if zero else np.zeros(1)
    rank = len(composer.dims(name))
    if value is not None and shift is not None:
        spread = shift.astype(np.float32).reshape(-1, *(1,) * (rank - 1))
        return composer.constant(value.astype(np.float32) - spread)
    if zero and math.prod(composer.dims(zero)) > 1:
        zero = composer.view(zero, (composer.dims(zero)[0], *(1,) * (rank - 1)))
    elif zero:
        zero = _number(composer, zero)
    return _shifted(composer, name, zero)


@typed_decompositions.register("ConvInteger")
def conv_integer(composer: Composer, node: Node) -> str | None:
    x, weight = node.inputs[:2]
    if not all(composer.dtype(name) in _BYTES for name in (x, weight)):
        return None
    zero = _number(composer, node.input(2)) if node.input(2) else ""
    total = _convolution(composer, node, (x, zero), (weight, node.input(3)))
    return composer.cast(composer.pointwise("Round", total), "int32")


@typed_decompositions.register("QLinearConv")
def qlinear_conv(composer: Composer, node: Node) -> str | None:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    dtype = composer.dtype(node.writes[0])
    if not all(composer.dtype(name) in _BYTES for name in (x, weight)) or dtype not in _BYTES:
        return None
    total = _convolution(composer, node, (x, _number(composer, x_zero)), (weight, w_zero))
    rank = len(composer.dims(x))
    channels = (composer.dims(weight)[0], *(1,) * (rank - 2))
    if bias and bias[0]:
        added = composer.view(composer.cast(bias[0], "float32"), channels)
        total = composer.pointwise("Add", total, added)
    one = math.prod(composer.dims(w_scale)) == 1
    scale = _number(composer, w_scale) if one else composer.view(w_scale, channels)
    product = composer.pointwise("Mul", _number(composer, x_scale), scale)
    factor = composer.exactly("Div", product, _number(composer, y_scale))
    return _requantised(composer, composer.pointwise("Mul", total, factor), y_zero, dtype)
