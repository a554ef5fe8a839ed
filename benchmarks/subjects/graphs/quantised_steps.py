"""What `quantised_graphs` may append to a graph: each draws its operands, or appends nothing.

Q/DQ pairs around float32 operators, ONNX's operators of bytes and int32 sums, those of
com.microsoft, moves of bytes, and float32 operators between them. Scales are of the ranges that
values have; now and then one that saturates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.subjects.graphs.moving_steps import blocked_product, is_byte, is_float, move, number
from benchmarks.subjects.graphs.quantised_graphs import MICROSOFT, WIDE, Array, Graph

Step = Callable[[Graph], object]

_LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _dtype(g: Graph) -> str:
    kinds = WIDE if g.opset >= 21 else WIDE[:2]
    odds = [0.5, 0.35, 0.1, 0.05][: len(kinds)]
    return str(g.rng.choice(kinds, p=np.array(odds) / sum(odds)))


def _coding(g: Graph, largest: float, dtype: str) -> tuple[str, str]:
    """Constants for a scale and zero point of a range."""
    low, high = _LIMITS[dtype]
    scale = max(largest, 1e-3) * 2 / (high - low) * g.rng.choice([1.0, 1.1, 0.5], p=[0.5, 0.4, 0.1])
    middle = (low + high + 1) // 2
    zero = middle + int(g.rng.integers(-20, 21)) if g.rng.random() < 0.7 else middle
    zero = low if g.rng.random() < 0.1 else zero
    shape = (1,) if g.rng.random() < 0.1 else ()
    return g.constant(np.full(shape, scale, np.float32)), g.constant(np.full(shape, zero, dtype))


def _bytes(g: Graph, dims: Callable[[Array], bool] = lambda value: True) -> tuple[str, str, str]:
    """Bytes with a coding, quantised first where need be."""
    name = g.pick(lambda v: is_byte(v) and dims(v))
    if not name or g.rng.random() < 0.3:
        source = g.pick(lambda v: is_float(v) and dims(v))
        made = _quantised(g, source, str(g.rng.choice(["uint8", "int8"]))) if source else ""
        name = made or name
    if not name:
        return "", "", ""
    if name not in g.codings:
        g.codings[name] = _coding(g, float(g.rng.uniform(0.5, 4)), g.value(name).dtype.name)
    return (name, *g.codings[name])


def _quantised(g: Graph, source: str, dtype: str) -> str:
    scale, zero = _coding(g, float(np.abs(g.value(source)).max()), dtype)
    leave = dtype == "uint8" and g.rng.random() < 0.1
    name = g.one("QuantizeLinear", source, scale, *([] if leave else [zero]))
    if name:
        g.codings[name] = (scale, g.constant(np.zeros((), dtype)) if leave else zero)
    return name


def _largest(g: Graph, coded: tuple[str, str, str]) -> float:
    name, scale, zero = coded
    wide = g.value(name).astype(np.float64) - g.value(zero).astype(np.float64)
    return float(np.abs(wide).max() * g.value(scale).max())


# -- between numbers and bytes --------------------------------------------------------------------
def quantise(g: Graph) -> object:
    source = g.pick(is_float)
    return source and _quantised(g, source, _dtype(g))


def dequantise(g: Graph) -> object:
    name = g.pick(lambda v: v.dtype.name in WIDE or v.dtype == np.int32)
    if not name:
        return None
    value = g.value(name)
    if value.dtype == np.int32:
        return g.one("DequantizeLinear", name, g.constant(0.001, np.float32))
    if name in g.codings and g.rng.random() < 0.8:
        return g.one("DequantizeLinear", name, *g.codings[name])
    return g.one("DequantizeLinear", name, *_coding(g, 2.0, value.dtype.name))


def along_an_axis(g: Graph) -> object:
    """A pair with one scale for each place of an axis, or for each block."""
    source = g.pick(lambda v: is_float(v) and v.ndim > 1)
    if not source or g.opset < 13:
        return None
    value, dtype = g.value(source), _dtype(g)
    axis = int(g.rng.integers(value.ndim))
    shape: tuple[int, ...] = (value.shape[axis],)
    stated = {"axis": axis - (value.ndim if g.rng.random() < 0.3 else 0)}
    if g.opset >= 21 and g.rng.random() < 0.4:
        block = int(g.rng.choice([2, 3, 4]))
        stated["block_size"] = block
        shape = (*value.shape[:axis], -(-value.shape[axis] // block), *value.shape[axis + 1 :])
    low, high = _LIMITS[dtype]
    step = max(float(np.abs(value).max()), 1e-3) * 2 / (high - low)
    scale = g.constant((g.rng.uniform(0.7, 1.3, shape) * step).astype(np.float32))
    middle = (low + high + 1) // 2
    zero = g.constant((middle + g.rng.integers(-5, 6, shape)).astype(dtype))
    coded = g.one("QuantizeLinear", source, scale, zero, **stated)
    return coded and g.one("DequantizeLinear", coded, scale, zero, **stated)


def quantise_microsoft(g: Graph) -> object:
    source = g.pick(is_float)
    if not source:
        return None
    scale, zero = _coding(g, float(np.abs(g.value(source)).max()), str(g.rng.choice(WIDE)))
    coded = g.one("QuantizeLinear", source, scale, zero, domain=MICROSOFT)
    return coded and g.one("DequantizeLinear", coded, scale, zero, domain=MICROSOFT)


# -- weights --------------------------------------------------------------------------------------
def _weights(g: Graph, shape: tuple[int, ...], axis: int) -> tuple[str, str, str, str]:
    """Constant codes, scale and zero point by channel or as a whole, and the zero point or ""."""
    dtype = str(g.rng.choice(["int8", "uint8"], p=[0.75, 0.25]))
    low, high = (-127, 128) if dtype == "int8" else (0, 256)
    codes = g.constant(g.rng.integers(low, high, shape).astype(dtype))
    count = (shape[axis],) if g.rng.random() < 0.6 and g.opset >= 13 else ()
    scale = g.constant((g.rng.uniform(0.5, 1.5, count) * 0.01).astype(np.float32))
    middle = 0 if dtype == "int8" else 128
    wander = g.rng.integers(-9, 10, count) if g.rng.random() < 0.3 else np.zeros(count)
    zero = g.constant((middle + wander).astype(dtype))
    return codes, scale, zero, "" if dtype == "int8" and g.rng.random() < 0.3 else zero


def _filter(g: Graph, value: Array) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of weights for an image, and a convolution's attributes."""
    channels, spatial = value.shape[1], value.ndim - 2
    size = int(g.rng.choice([1, 2, 3]))
    groups = int(g.rng.choice([1, 1, 1, channels, 2 if channels % 2 == 0 else 1]))
    out = groups * int(g.rng.integers(1, 4))
    stated: dict[str, Any] = {"kernel_shape": [size] * spatial, "group": groups}
    if g.rng.random() < 0.5:
        stated["pads"] = [int(p) for p in g.rng.integers(0, 2, 2 * spatial)]
    elif g.rng.random() < 0.3:
        stated["auto_pad"] = str(g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if g.rng.random() < 0.3:
        stated["strides"] = [2] * spatial
    if g.rng.random() < 0.15:
        stated["dilations"] = [2] * spatial
    return (out, channels // groups, *[size] * spatial), stated


def _bias(g: Graph, count: int, scale: str, weight_scale: str) -> tuple[str, str]:
    """An int32 bias and its scale."""
    steps = np.broadcast_to(g.value(scale).reshape(-1) * g.value(weight_scale), (count,))
    if g.value(weight_scale).ndim == 0:
        steps = steps[0]
    return g.constant(g.rng.integers(-3000, 3000, count).astype(np.int32)), g.constant(
        steps, np.float32
    )


def pair_convolution(g: Graph) -> object:
    """Conv of dequantised tensors, with what may stand around it."""
    x = _bytes(g, lambda v: 3 <= v.ndim <= 5)
    if not x[0]:
        return None
    numbers = g.one("DequantizeLinear", *x)
    shape, stated = _filter(g, g.value(numbers))
    codes, scale, _zero, given = _weights(g, shape, 0)
    axis = {"axis": 0} if g.value(scale).ndim else {}
    weights = g.one("DequantizeLinear", codes, scale, *filter(None, [given]), **axis)
    inputs = [numbers, weights]
    kind = g.rng.random()
    if kind < 0.4:
        bias, steps = _bias(g, shape[0], x[1], scale)
        along = {"axis": 0} if g.value(steps).ndim else {}
        inputs.append(g.one("DequantizeLinear", bias, steps, **along))
    elif kind < 0.7:
        inputs.append(g.constant(g.rng.standard_normal(shape[0]), np.float32))
    return all(inputs) and _maybe_coded(g, g.one("Conv", *inputs, **stated))


def pair_product(g: Graph) -> object:
    """MatMul or Gemm of dequantised tensors."""
    x = _bytes(g, lambda v: v.ndim >= 2)
    if not x[0]:
        return None
    numbers = g.one("DequantizeLinear", *x)
    depth, columns = g.value(numbers).shape[-1], int(g.rng.integers(1, 12))
    gemm = g.value(numbers).ndim == 2 and g.rng.random() < 0.6
    turned = gemm and g.rng.random() < 0.5
    shape = (columns, depth) if turned else (depth, columns)
    codes, scale, _zero, given = _weights(g, shape, 0 if turned else 1)
    axis = {"axis": 0 if turned else 1} if g.value(scale).ndim else {}
    weights = g.one("DequantizeLinear", codes, scale, *filter(None, [given]), **axis)
    if not weights:
        return None
    if not gemm:
        return _maybe_coded(g, g.one("MatMul", numbers, weights))
    inputs = [numbers, weights]
    forms = [(columns,), (1, columns), (g.value(numbers).shape[0], 1), (), (1,)]
    if g.rng.random() < 0.7:
        form = forms[int(g.rng.choice(5, p=[0.5, 0.15, 0.15, 0.1, 0.1]))]
        inputs.append(g.constant(g.rng.standard_normal(form), np.float32))
    stated = {"alpha": 0.5, "beta": 2.0} if g.rng.random() < 0.2 else {}
    return _maybe_coded(g, g.one("Gemm", *inputs, transB=int(turned), **stated))


def _maybe_coded(g: Graph, name: str) -> object:
    """A bound, and bytes again, most of the time."""
    if name and g.rng.random() < 0.4:
        name = g.one("Relu", name)
    if name and g.rng.random() < 0.7:
        return _quantised(g, name, str(g.rng.choice(["uint8", "int8"])))
    return name


# -- operators of bytes ---------------------------------------------------------------------------
def qlinear_conv(g: Graph) -> object:
    x = _bytes(g, lambda v: 3 <= v.ndim <= 5)
    if not x[0]:
        return None
    shape, stated = _filter(g, g.value(x[0]))
    codes, scale, zero, _ = _weights(g, shape, 0)
    largest = _largest(g, x) * 0.3 * math.sqrt(math.prod(shape[1:]))
    y = _coding(g, largest, g.value(x[0]).dtype.name)
    bias = [_bias(g, shape[0], x[1], scale)[0]] if g.rng.random() < 0.5 else []
    name = g.one("QLinearConv", *x, codes, scale, zero, *y, *bias, **stated)
    if name:
        g.codings[name] = y
    return name


def qlinear_matmul(g: Graph) -> object:
    x = _bytes(g, lambda v: v.ndim >= 2)
    if not x[0]:
        return None
    depth = g.value(x[0]).shape[-1]
    other = _bytes(g, lambda v: v.ndim >= 2 and v.shape[-2] == depth)
    if other[0] and g.rng.random() < 0.3:
        b, largest = other, _largest(g, x) * _largest(g, other)
    else:
        codes, scale, zero, _ = _weights(g, (depth, int(g.rng.integers(1, 10))), 1)
        b, largest = (codes, scale, zero), _largest(g, x) * 0.3 * math.sqrt(depth)
    y = _coding(g, largest, g.value(x[0]).dtype.name)
    name = g.one("QLinearMatMul", *x, *b, *y)
    if name:
        g.codings[name] = y
    return name


def matmul_integer(g: Graph) -> object:
    """Of bytes, or of numbers quantised as they come; also scaled to numbers."""
    dynamic = g.rng.random() < 0.6
    factor = ""
    if dynamic:
        x = g.pick(lambda v: is_float(v) and v.ndim >= 2)
        found = g.add("DynamicQuantizeLinear", x, results=3) if x else ()
        if not found:
            return None
        a, factor, start = found
    else:
        a, _, start = _bytes(g, lambda v: v.ndim >= 2)
    if not a:
        return None
    codes, scale, _zero, given = _weights(g, (g.value(a).shape[-1], int(g.rng.integers(1, 10))), 1)
    ends = [start, *filter(None, [given])] if g.rng.random() < 0.8 else []
    total = g.one("MatMulInteger", a, codes, *ends)
    return total and _numbers(g, total, factor, scale)


def conv_integer(g: Graph) -> object:
    x = g.pick(lambda v: is_float(v) and v.ndim in (3, 4))
    found = g.add("DynamicQuantizeLinear", x, results=3) if x else ()
    if not found:
        return None
    shape, stated = _filter(g, g.value(x))
    codes, _, zero, given = _weights(g, shape, 0)
    if given and g.value(zero).ndim:
        given = ""
    ends = [found[2], *filter(None, [given])] if g.rng.random() < 0.9 else []
    total = g.one("ConvInteger", found[0], codes, *ends, **stated)
    return total and _numbers(g, total, found[1], g.constant(0.01, np.float32))


def _numbers(g: Graph, total: str, factor: str, scale: str) -> object:
    wide = g.one("Cast", total, to=1)
    if factor and g.rng.random() < 0.8:
        scale = g.one("Mul", factor, scale)
    wide = wide and scale and g.one("Mul", wide, scale)
    if wide and g.rng.random() < 0.5:
        shape = g.value(wide).shape[-1:]
        return g.one("Add", wide, g.constant(g.rng.standard_normal(shape), np.float32))
    return wide


# -- com.microsoft --------------------------------------------------------------------------------
def _two(g: Graph, operator: str) -> object:
    a = _bytes(g)
    if not a[0]:
        return None
    value = g.value(a[0])
    b = _bytes(g, lambda v: v.shape == value.shape and v.dtype == value.dtype)
    if not b[0] or g.value(b[0]).dtype != value.dtype or g.rng.random() < 0.3:
        form = value.shape[-1:] if g.rng.random() < 0.5 else (1,)
        low, high = _LIMITS[value.dtype.name]
        b = (
            g.constant(g.rng.integers(low, high + 1, form).astype(value.dtype)),
            *_coding(g, 1.0, value.dtype.name),
        )
    parts = _largest(g, a), _largest(g, b)
    y = _coding(g, math.prod(parts) if operator == "Mul" else sum(parts), value.dtype.name)
    name = g.one(f"QLinear{operator}", *a, *b, *y, domain=MICROSOFT)
    if name:
        g.codings[name] = y
    return name


def _one(g: Graph, operator: str, **attributes: Any) -> object:
    image = "Pool" in operator
    a = _bytes(g, lambda v: v.ndim == 4 if image else v.ndim > 1)
    if not a[0]:
        return None
    bounded = operator in ("Sigmoid", "Softmax")
    y = _coding(g, 1.0 if bounded else _largest(g, a), g.value(a[0]).dtype.name)
    name = g.one(f"QLinear{operator}", *a, *y, domain=MICROSOFT, **attributes)
    if name:
        g.codings[name] = y
    return name


def microsoft_unary(g: Graph) -> object:
    rank = int(g.rng.integers(2, 5))
    forms: list[tuple[str, dict[str, Any]]] = [
        ("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.1}), ("Softmax", {"opset": 13, "axis": -1}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("GlobalAveragePool", {"channels_last": 0}),
        ("ReduceMean", {"axes": [rank - 1], "keepdims": int(rank % 2)}),
    ]  # fmt: skip
    operator, attributes = forms[int(g.rng.integers(len(forms)))]
    return _one(g, operator, **attributes)


def microsoft_concat(g: Graph) -> object:
    a = _bytes(g, lambda v: v.ndim > 1)
    if not a[0]:
        return None
    shape, dtype = g.value(a[0]).shape, g.value(a[0]).dtype
    b = _bytes(g, lambda v: v.shape == shape and v.dtype == dtype)
    if not b[0] or g.value(b[0]).dtype != dtype:
        b = a
    y = _coding(g, max(_largest(g, a), _largest(g, b)), dtype.name)
    name = g.one("QLinearConcat", *y, *a, *b, domain=MICROSOFT, axis=1)
    if name:
        g.codings[name] = y
    return name


def microsoft_product(g: Graph) -> object:
    x = _bytes(g, lambda v: v.ndim >= 2)
    if not x[0]:
        return None
    value = g.value(x[0])
    columns = int(g.rng.integers(1, 10))
    codes, scale, zero, given = _weights(g, (value.shape[-1], columns), 1)
    bias = g.constant(g.rng.standard_normal(columns), np.float32)
    kind = int(g.rng.integers(3))
    if kind == 0:
        inputs = [x[0], codes, x[1], scale, x[2], given, bias]
        return g.one("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)
    if kind == 1:
        source = g.pick(lambda v: is_float(v) and v.shape[-1:] == value.shape[-1:])
        inputs = [source, codes, scale, given, bias]
        return source and g.one("DynamicQuantizeMatMul", *inputs, domain=MICROSOFT)
    if value.ndim != 2:
        return None
    y = _coding(g, _largest(g, x) * 0.3 * math.sqrt(value.shape[1]), value.dtype.name)
    whole = _bias(g, columns, x[1], scale)[0]
    ends = list(y) if g.rng.random() < 0.7 else []
    return g.one("QGemm", *x, codes, scale, zero, whole, *ends, domain=MICROSOFT)


STEPS: tuple[Step, ...] = (
    quantise, quantise, dequantise, dequantise, along_an_axis, quantise_microsoft,
    pair_convolution, pair_convolution, pair_product, pair_product, blocked_product,
    qlinear_conv, qlinear_matmul, matmul_integer, conv_integer,
    lambda g: _two(g, "Add"), lambda g: _two(g, "Mul"), microsoft_unary, microsoft_concat,
    microsoft_product, move, move, move, number, number,
)  # fmt: skip
