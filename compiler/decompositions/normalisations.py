"""LayerNormalization, RMSNormalization and Swish in forms that no kernel has -> those that one has.

Scales and shifts that are spread over what is normalised come after it; mean and reciprocal of the
deviation, where a model asks for them, are computed beside it. Source: ONNX's operators, 17, 23
and 24 on.
"""

import math
from typing import Any

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import (
    Composer,
    decompositions,
    typed_decompositions,
)


@decompositions.register("Swish")
def swish(composer: Composer, node: Node) -> str | None:
    """x sigmoid(alpha x)."""
    x, alpha = node.inputs[0], float(node.attribute("alpha", 1.0))
    if alpha == 1.0:
        return None
    inner = composer.pointwise("Mul", x, composer.number(alpha))
    return composer.pointwise("Mul", x, composer.pointwise("Sigmoid", inner))


@decompositions.register("RMSNormalization")
def rms_normalization(composer: Composer, node: Node) -> str | None:
    return _plain(composer, node) if _is_spread(composer, node) else None


@typed_decompositions.register("LayerNormalization")
def layer_normalization(composer: Composer, node: Node) -> tuple[str, ...] | None:
    names = (*node.reads, *node.writes)
    if any(composer.dtype(name) != "float32" for name in names):
        return None
    if len(node.writes) == 1 and not _is_spread(composer, node):
        return None
    x, dims = node.inputs[0], composer.dims(node.inputs[0])
    y = _plain(composer, node)
    if len(node.writes) == 1:
        return (y,)
    axis = int(node.attribute("axis", -1)) % len(dims)
    over = range(axis, len(dims))
    mean = composer.reduce("ReduceMean", x, over)
    centred = composer.pointwise("Sub", x, mean)
    variance = composer.reduce("ReduceMean", composer.pointwise("Mul", centred, centred), over)
    small = composer.number(float(node.attribute("epsilon", 1e-5)))
    root = composer.pointwise("Sqrt", composer.pointwise("Add", variance, small))
    return y, mean, composer.pointwise("Reciprocal", root)


def _is_spread(composer: Composer, node: Node) -> bool:
    """Whether a scale or shift is not of the normalised axes' extents."""
    dims = composer.dims(node.inputs[0])
    axis = int(node.attribute("axis", -1)) % len(dims)
    length = math.prod(dims[axis:])
    return any(math.prod(composer.dims(name)) != length for name in node.reads[1:])


def _plain(composer: Composer, node: Node) -> str:
    """Normalised by the operator itself, then scaled and shifted."""
    x, dims = node.inputs[0], composer.dims(node.inputs[0])
    axis = int(node.attribute("axis", -1)) % len(dims)
    ones = composer.constant(np.ones(dims[axis:], np.float32))
    stated: dict[str, Any] = {"axis": axis, "epsilon": float(node.attribute("epsilon", 1e-5))}
    y = composer.newest(node.operator, x, ones, shape=dims, **stated)
    y = composer.pointwise("Mul", y, node.inputs[1])
    return composer.pointwise("Add", y, node.inputs[2]) if node.input(2) else y
