"""What leaves bytes or numbers as they are, and operators of float32, with weights of few bits
among them, for `quantised_graphs`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.subjects.graphs.quantised_graphs import Array, Graph


def is_float(value: Array) -> bool:
    return value.dtype == np.float32


def is_byte(value: Array) -> bool:
    return value.dtype.name in ("uint8", "int8")


def move(g: Graph) -> object:
    """What leaves bytes, or numbers, as they are."""
    name = g.pick(lambda v: v.ndim >= 2 and (is_byte(v) or is_float(v)))
    if not name:
        return None
    value, coding = g.value(name), g.codings.get(name)
    order = [int(a) for a in g.rng.permutation(value.ndim)]
    forms: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("Transpose", (), {"perm": order}),
        ("Reshape", (g.constant([value.shape[0], -1], np.int64),), {}),
        ("Flatten", (), {"axis": 1}),
        ("Concat", (name,), {"axis": int(g.rng.integers(value.ndim))}),
        ("Slice", (g.constant([0], np.int64), g.constant([-1], np.int64),
                   g.constant([value.ndim - 1], np.int64)), {}),
        ("Gather", (g.constant([0, 1, 0], np.int64),), {"axis": value.ndim - 1}),
        ("MaxPool", (), {"kernel_shape": [2] * (value.ndim - 2)}),
        ("Relu", (), {}), ("Identity", (), {}),
        ("Resize", ("", g.constant([1.0, 1.0] + [2.0] * (value.ndim - 2), np.float32)),
                   {"mode": "nearest"}),
        ("Pad", (g.constant([0, 1] * value.ndim, np.int64),), {}),
        ("Max", (name,), {}),
    ]  # fmt: skip
    operator, more, stated = forms[int(g.rng.integers(len(forms)))]
    found = g.one(operator, name, *more, **stated)
    if found and coding:
        g.codings[found] = coding
    return found


def number(g: Graph) -> object:
    """An operator of float32."""
    name = g.pick(lambda v: is_float(v) and v.ndim >= 2)
    if not name:
        return None
    value = g.value(name)
    other = g.pick(lambda v: is_float(v) and v.shape == value.shape)
    forms: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("Relu", (), {}), ("Sigmoid", (), {}), ("Tanh", (), {}), ("HardSigmoid", (), {}),
        ("Add", (other,), {}), ("Mul", (other,), {}), ("Sub", (other,), {}),
        ("Clip", (g.constant(0, np.float32), g.constant(6, np.float32)), {}),
        ("Softmax", (), {"axis": value.ndim - 1}),
        ("GlobalAveragePool", (), {}),
        ("AveragePool", (), {"kernel_shape": [2] * (value.ndim - 2)}),
        ("LeakyRelu", (), {}),
        ("Add", (g.constant(g.rng.standard_normal(value.shape[-1]), np.float32),), {}),
    ]  # fmt: skip
    operator, more, stated = forms[int(g.rng.integers(len(forms)))]
    return g.one(operator, name, *more, **stated)


def blocked_product(g: Graph) -> object:
    """MatMul of float32 by weights of 4 or 8 bits in blocks, or by whole columns."""
    x = g.pick(lambda v: is_float(v) and v.ndim >= 2)
    if not x or g.opset < 21:
        return None
    depth, columns = g.value(x).shape[-1], int(g.rng.integers(1, 12))
    kind: Any = [ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint8][int(g.rng.integers(4))]
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[
        np.dtype(kind).name
    ]
    codes = g.constant(g.rng.integers(low, high, (depth, columns)).astype(kind))
    blocks = [b for b in (2, 4, 8) if depth % b == 0]
    block = int(g.rng.choice(blocks)) if blocks and g.rng.random() < 0.7 else 0
    form = (depth // block, columns) if block else (columns,)
    scale = g.constant((g.rng.uniform(0.5, 1.5, form) / (high - low)).astype(np.float32))
    middle = (low + high) // 2
    zero = g.constant((middle + g.rng.integers(-2, 3, form)).astype(kind))
    stated = {"axis": 0, "block_size": block} if block else {"axis": 1}
    weights = g.one("DequantizeLinear", codes, scale, zero, **stated)
    return weights and g.one("MatMul", x, weights)
