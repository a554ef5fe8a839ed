"""Attention (opset 23 on) -> products, scale, mask and softmax, as older exporters write them.

Sequences of fewer key heads than query heads repeat them; a mask of truth values becomes one of 0
and the lowest number; causality becomes a mask of constants. A query that may see no key at all has
a result of zero. Caches of earlier keys, soft caps, windows and results beside the first are left
to the host.
"""

from __future__ import annotations

import math

import numpy as np

from tilesmith.compiler.decomposition import Composer, decompositions
from tilesmith.compiler.decompositions.repetition import broadcast
from tilesmith.compiler.graph import Node

_ATTRIBUTES = {
    "is_causal", "kv_num_heads", "q_num_heads", "scale", "softcap", "softmax_precision",
}  # fmt: skip
"""What is known here; any other changes what is computed."""


_LOWEST = float(np.finfo(np.float32).min)


@decompositions.register("Attention")
def attention(composer: Composer, node: Node) -> str | None:
    """See the module's docstring."""
    earlier = any(node.input(position) for position in (4, 5, 6))
    if earlier or float(node.attribute("softcap", 0.0)) != 0.0:
        return None
    if not {name for name, _ in node.attributes} <= _ATTRIBUTES:
        return None
    if any(composer.dtype(name) != "float32" for name in node.inputs[:3]):
        return None
    if node.input(3) and composer.dtype(node.input(3)) not in ("float32", "bool"):
        return None
    query_heads, key_heads = (int(node.attribute(f"{n}_num_heads", 0)) for n in ("q", "kv"))
    query = _heads(composer, node.inputs[0], query_heads)
    key, value = (_heads(composer, name, key_heads) for name in node.inputs[1:3])
    batch, heads, rows, depth = composer.dims(query)
    keys, repeated = composer.dims(key)[2], heads // composer.dims(key)[1]
    key, value = (_repeated(composer, name, repeated) for name in (key, value))
    shape = (batch, heads, rows, keys)
    turned = composer.transpose(key, (0, 1, 3, 2))
    scores = composer.apply("MatMul", query, turned, shape=shape)
    scale = float(node.attribute("scale", 0.0)) or 1.0 / math.sqrt(depth)
    scores = composer.pointwise("Mul", scores, composer.number(scale))
    for mask in _masks(composer, node, rows, keys):
        if composer.dims(mask)[-1] != keys:
            return None
        scores = composer.pointwise("Add", scores, mask)
    weights = composer.apply("Softmax", scores, shape=shape, axis=-1)
    width = composer.dims(value)[3]
    mixed = composer.apply("MatMul", weights, value, shape=(batch, heads, rows, width))
    if seeing := _seeing(composer, node, rows, keys):
        mixed = composer.pointwise("Mul", mixed, seeing)
    if len(composer.dims(node.writes[0])) == 4:
        return mixed
    joined = composer.transpose(mixed, (0, 2, 1, 3))
    return composer.view(joined, (batch, rows, heads * width))


def _heads(composer: Composer, name: str, heads: int) -> str:
    """[batch, heads, length, features] of that or of [batch, length, heads * features]."""
    dims = composer.dims(name)
    if len(dims) == 4:
        return name
    batch, length, features = dims
    return composer.transpose(
        composer.view(name, (batch, length, heads, features // heads)), (0, 2, 1, 3)
    )


def _repeated(composer: Composer, name: str, times: int) -> str:
    """Each head `times` times."""
    if times == 1:
        return name
    batch, heads, length, features = composer.dims(name)
    apart = composer.view(name, (batch, heads, 1, length, features))
    whole = broadcast(composer, apart, (batch, heads, times, length, features))
    return composer.view(whole, (batch, heads * times, length, features))


def _masks(composer: Composer, node: Node, rows: int, keys: int) -> list[str]:
    """What is added to the scores."""
    found: list[str] = []
    if name := node.input(3):
        if composer.dtype(name) == "bool":
            low, zero = composer.number(_LOWEST), composer.number(0.0)
            name = composer.pointwise("Where", name, zero, low)
        found.append(name)
    if int(node.attribute("is_causal", 0)):
        below = np.tril(np.ones((rows, keys), dtype=bool))
        found.append(composer.constant(np.where(below, np.float32(0), np.float32(-np.inf))))
    return found


def _seeing(composer: Composer, node: Node, rows: int, keys: int) -> str:
    """1 for queries that see a key, 0 for others; "" where all are sure to."""
    mask, causal = node.input(3), int(node.attribute("is_causal", 0))
    if not mask or composer.dtype(mask) != "bool":
        return ""
    below = np.tril(np.ones((rows, keys), dtype=bool)) if causal else np.ones((1, 1), dtype=bool)
    known = composer.value(mask)
    if known is not None and bool((known & below).any(axis=-1).all()):
        return ""
    shown = composer.pointwise("Where", mask, composer.number(1.0), composer.number(0.0))
    if causal:
        shown = composer.pointwise("Mul", shown, composer.constant(below.astype(np.float32)))
    last = composer.constant(np.array([-1]))
    shape = (*composer.dims(shown)[:-1], 1)
    return composer.apply("ReduceMax", shown, last, shape=shape, keepdims=1)
