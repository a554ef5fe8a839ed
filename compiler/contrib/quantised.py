"""Quantised operators of com.microsoft: numbers are dequantised, computed with, quantised again.

Each tensor of bytes is followed by its scale and zero point (one number each; 0 if left out):

    QLinearAdd, QLinearMul (a, b -> y), QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax,
    QLinearAveragePool, QLinearGlobalAveragePool, QLinearReduceMean (x -> y)
    QLinearConcat (y's scale and zero point first, then each part with its own), QLinearWhere
    QuantizeLinear, DequantizeLinear    as ONNX's newest: also of 16 and of 4 bits
    QEmbedLayerNormalization    EmbedLayerNormalization of quantised tables, whose scales and zero
                                points come last

`channels_last` puts channels last; `opset` of QLinearSoftmax says whose Softmax is meant (before 13
what follows the axis is one). ONNX Runtime computes some of these by tables and ratios of scales:
where a result lies between two bytes it may take the other one. Source: ONNX Runtime,
docs/ContribOperators.md.
"""

from typing import Any

import numpy as np

from tilesmith.compiler.contrib.convolutions import channels_first, channels_last, stated
from tilesmith.compiler.contrib.normalisations import embedded
from tilesmith.compiler.rewriting.expansion import Expansion, operator


def dequantised(e: Expansion, first: int) -> str:
    """Input `first` as numbers, by the scale and zero point behind it."""
    return e.since(13, "DequantizeLinear", *(e.input(first + i) for i in range(3)))


def quantised(e: Expansion, x: str, scale: str, zero: str, dtype: str) -> str:
    """Numbers as bytes."""
    zero = zero or e.constant(np.zeros((), np.int8), dtype)
    return e.since(13, "QuantizeLinear", x, scale, zero)


def _result(e: Expansion, x: str, scale: int) -> str:
    """Bytes of the first input's type, by the scale and zero point at these places."""
    return quantised(e, x, e.input(scale), e.input(scale + 1), e.dtype(e.input(0)))


@operator("com.microsoft.QLinearAdd", 7, 8)
def qlinear_add(e: Expansion) -> str:
    return _result(e, e.apply("Add", dequantised(e, 0), dequantised(e, 3)), 6)


@operator("com.microsoft.QLinearMul", 7, 8)
def qlinear_mul(e: Expansion) -> str:
    return _result(e, e.apply("Mul", dequantised(e, 0), dequantised(e, 3)), 6)


@operator("com.microsoft.QLinearSigmoid", 4, 5)
def qlinear_sigmoid(e: Expansion) -> str:
    return _result(e, e.apply("Sigmoid", dequantised(e, 0)), 3)


@operator("com.microsoft.QLinearLeakyRelu", 4, 5, alpha=0.01)
def qlinear_leaky_relu(e: Expansion) -> str:
    return _result(e, e.apply("LeakyRelu", dequantised(e, 0), alpha=e.attribute("alpha")), 3)


@operator("com.microsoft.QLinearSoftmax", 5, 5, axis=-1, opset=int)
def qlinear_softmax(e: Expansion) -> str:
    x, axis = dequantised(e, 0), int(e.attribute("axis"))
    if e.count("opset") >= 13:
        return _result(e, e.newest("Softmax", x, axis=axis), 3)
    flat = e.newest("Softmax", e.apply("Flatten", x, axis=axis % e.rank(x)), axis=-1)
    return _result(e, e.reshape(flat, *e.dims(x)), 3)


_POOL: dict[str, Any] = {
    "auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 0, "kernel_shape": tuple,
    "pads": (), "strides": (),
}  # fmt: skip


@operator("com.microsoft.QLinearAveragePool", 4, 5, channels_last=0, **_POOL)
def qlinear_average_pool(e: Expansion) -> str:
    return _result(e, _pooled(e, "AveragePool", **stated(e, *_POOL)), 3)


@operator("com.microsoft.QLinearGlobalAveragePool", 5, 5, channels_last=0)
def qlinear_global_average_pool(e: Expansion) -> str:
    return _result(e, _pooled(e, "GlobalAveragePool"), 3)


def _pooled(e: Expansion, operator: str, **attributes: Any) -> str:
    x, last = dequantised(e, 0), int(e.attribute("channels_last"))
    y = e.apply(operator, channels_first(e, x) if last else x, **attributes)
    return channels_last(e, y) if last else y


@operator("com.microsoft.QLinearReduceMean", 4, 5, axes=tuple, keepdims=int)
def qlinear_reduce_mean(e: Expansion) -> str:
    over = e.whole(*(int(axis) for axis in e.attribute("axes")))
    keep = int(e.attribute("keepdims"))
    return _result(e, e.newest("ReduceMean", dequantised(e, 0), over, keepdims=keep), 3)


@operator("com.microsoft.QLinearConcat", 5, 2**31, axis=int)
def qlinear_concat(e: Expansion) -> str:
    parts = [dequantised(e, i) for i in range(2, len(e.node.inputs) - 2, 3)]
    whole = e.apply("Concat", *parts, axis=int(e.attribute("axis")))
    return quantised(e, whole, e.input(0), e.input(1), e.dtype(e.input(2)))


@operator("com.microsoft.QLinearWhere", 9, 9)
def qlinear_where(e: Expansion) -> str:
    chosen = e.apply("Where", e.input(0), dequantised(e, 1), dequantised(e, 4))
    return quantised(e, chosen, e.input(7), e.input(8), e.dtype(e.input(1)))


@operator("com.microsoft.DequantizeLinear", 2, 3, axis=1, block_size=0)
def dequantize_linear(e: Expansion) -> str:
    return e.newest("DequantizeLinear", *e.node.inputs, **stated(e, "axis", "block_size"))


@operator("com.microsoft.QuantizeLinear", 2, 3, axis=1, block_size=0)
def quantize_linear(e: Expansion) -> str:
    return e.newest("QuantizeLinear", *e.node.inputs, **stated(e, "axis", "block_size"))


@operator("com.microsoft.QEmbedLayerNormalization", 18, 18, epsilon=1e-12)
def quantised_embeddings(e: Expansion) -> tuple[str, ...]:
    """Tables 2 to 6 have their scales at 8 to 12 and their zero points at 13 to 17."""
    tables = [
        e.since(13, "DequantizeLinear", e.input(i), e.input(i + 6), e.input(i + 11))
        if e.input(i)
        else ""
        for i in range(2, 7)
    ]
    return embedded(e, (e.input(0), e.input(1)), tables, e.input(7), "")[:2]
