"""What Attention adds to its scores: masks, causality, windows and lengths, as one tensor.

A mask of truth values is 0 where it holds and minus infinity elsewhere; one shorter than the keys
leaves the others out. Query i is at position i + offset: behind the earlier keys, or, where keys
lie in a buffer of which each sequence fills a part (`nonpad_kv_seqlen`), at the end of that part.
Causality lets it see keys up to its position, a window those at most so far before or behind it.
Source: ONNX's Attention, opsets 23 to 26.
"""

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer

Shape = tuple[int, int, int, int]
"""Sequences, heads, queries, keys."""


def mask_of(composer: Composer, node: Node, shape: Shape, earlier: int) -> tuple[str, bool]:
    """What is added to the scores ("" for nothing), and whether a query may see no key at all.

    Args:
        earlier: keys before the queries' own.
    """
    parts = [_given(composer, node.input(3), shape[3])] if node.input(3) else []
    lengths = node.input(6)
    if lengths:
        parts.append(_filled(composer, node, lengths, shape))
    fixed = np.zeros((1, 1), np.float32) if lengths else _positions(node, shape, earlier)
    if np.any(fixed):
        parts.append(composer.constant(fixed))
    parts = [name for name in parts if name]
    values = [value for name in parts if (value := composer.value(name)) is not None]
    if len(values) == len(parts) > 0:
        whole = sum(values[1:], values[0])
        blind = bool(np.isneginf(whole.max(axis=-1)).any())
        return composer.constant(np.asarray(whole, np.float32)), blind
    total = parts[0] if parts else ""
    for name in parts[1:]:
        total = composer.pointwise("Add", total, name)
    return total, bool(parts)


def _given(composer: Composer, name: str, keys: int) -> str:
    """The mask operand as summands."""
    if composer.dtype(name) == "bool":
        value = composer.value(name)
        if value is not None:
            name = composer.constant(np.where(value, np.float32(0), np.float32(-np.inf)))
        else:
            low, zero = composer.number(-np.inf), composer.number(0.0)
            name = composer.pointwise("Where", name, zero, low)
    dims = composer.dims(name)
    if dims[-1] >= keys:
        return name
    beyond = np.full((*dims[:-1], keys - dims[-1]), -np.inf, np.float32)
    value = composer.value(name)
    if value is not None:
        return composer.constant(np.concatenate((value, beyond), axis=-1))
    return composer.concat(len(dims) - 1, name, composer.constant(beyond))


def _windows(node: Node) -> tuple[int, int]:
    left, right = (int(node.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    if int(node.attribute("is_causal", 0)):
        right = 0 if right < 0 else min(right, 0)
    return left, right


def _positions(node: Node, shape: Shape, earlier: int) -> np.ndarray:
    """Causality and windows where positions are known."""
    left, right = _windows(node)
    ahead = np.arange(shape[3]) - (np.arange(shape[2])[:, None] + earlier)
    seen = np.ones(ahead.shape, dtype=bool)
    seen &= (ahead <= right) if right >= 0 else True
    seen &= (ahead >= -left) if left >= 0 else True
    return np.where(seen, np.float32(0), np.float32(-np.inf))


def _filled(composer: Composer, node: Node, lengths: str, shape: Shape) -> str:
    """Causality, windows and what lies behind the filled part of a buffer."""
    left, right = _windows(node)
    batch, _, rows, keys = shape
    filled = composer.view(composer.cast(lengths, "int64"), (batch, 1, 1, 1))

    def hold(operator: str, numbers: np.ndarray, bound: str) -> str:
        return composer.pointwise(operator, composer.constant(numbers), bound, dtype="bool")

    if right == 0:  # causality leaves out what is not filled, too
        ahead = np.arange(keys) - np.arange(rows)[:, None]
        seen = hold("Less", ahead + rows, composer.pointwise("Add", filled, composer.constant(
            np.array(1)), dtype="int64"))  # fmt: skip
    else:
        seen = hold("Less", np.arange(keys).reshape(1, -1), filled)
        ahead = np.arange(keys) - np.arange(rows)[:, None]
        if right > 0:
            behind = hold("LessOrEqual", ahead + rows - right, filled)
            seen = composer.pointwise("And", seen, behind, dtype="bool")
    if left >= 0:
        near = hold("GreaterOrEqual", ahead + rows + left, filled)
        seen = composer.pointwise("And", seen, near, dtype="bool")
    low, zero = composer.number(-np.inf), composer.number(0.0)
    return composer.pointwise("Where", seen, zero, low)
