"""Normalisations of com.microsoft, and those ONNX Runtime writes into ONNX's own domain.

LayerNormalization before opset 17 and SimplifiedLayerNormalization (of root mean squares, without a
mean) stand in ONNX's domain in models that its optimiser wrote. The others are of com.microsoft:

    SkipLayerNormalization(x, skip, gamma, beta?, bias?)     t = x + skip + bias; normalised t,
                                                             two results never asked for, t itself
    SkipSimplifiedLayerNormalization(x, skip, gamma, bias?)  likewise by root mean squares
    EmbedLayerNormalization(ids, segments?, words, places, kinds?, gamma, beta, mask?, positions?)
        sums the three embeddings and normalises; second result: each sequence's sum of the mask
    GroupNorm(x, gamma, beta), SkipGroupNorm(x, gamma, beta, skip, bias?)
        `groups`, x with its channels last unless channels_last = 0, activation 1 is SiLU

Epsilon is 1e-12 (GroupNorm 1e-5, ONNX's own 1e-5). Source: ONNX Runtime, docs/ContribOperators.md.
"""

import numpy as np

from tilesmith.compiler.rewriting.expansion import Expansion, operator


@operator("ai.onnx.LayerNormalization", 2, 3, axis=-1, epsilon=1e-5, stash_type=1)
def layer_normalization(e: Expansion) -> tuple[str, ...]:
    stated = {name: e.attribute(name) for name in ("axis", "epsilon", "stash_type")}
    count = max(i + 1 for i in range(3) if e.wants(i))
    outputs = e.newest_outputs(count, "LayerNormalization", *e.node.inputs, **stated)
    return tuple(outputs)


@operator("ai.onnx.SimplifiedLayerNormalization", 2, 2, axis=-1, epsilon=1e-5, stash_type=1)
def simplified_layer_normalization(e: Expansion) -> tuple[str, ...]:
    x, axis, epsilon = e.input(0), int(e.attribute("axis")), float(e.attribute("epsilon"))
    y = e.newest("RMSNormalization", x, e.input(1), axis=axis, epsilon=epsilon)
    if not e.wants(1):
        return (y,)
    over = e.whole(*range(axis % e.rank(x), e.rank(x)))
    squares = e.newest("ReduceMean", e.apply("Mul", x, x), over, keepdims=1)
    root = e.apply("Sqrt", e.apply("Add", squares, e.number(epsilon, x)))
    return y, e.apply("Reciprocal", root)


@operator("com.microsoft.SkipLayerNormalization", 3, 5, epsilon=1e-12)
def skip_layer_normalization(e: Expansion) -> tuple[str, ...]:
    total = e.add(e.apply("Add", e.input(0), e.input(1)), e.input(4))
    return _normalised(e, total, e.input(2), e.input(3)), "", "", total


@operator("com.microsoft.SkipSimplifiedLayerNormalization", 3, 4, epsilon=1e-12)
def skip_simplified_layer_normalization(e: Expansion) -> tuple[str, ...]:
    total = e.add(e.apply("Add", e.input(0), e.input(1)), e.input(3))
    stated = {"axis": -1, "epsilon": float(e.attribute("epsilon"))}
    return e.newest("RMSNormalization", total, e.input(2), **stated), "", "", total


def _normalised(e: Expansion, x: str, gamma: str, beta: str) -> str:
    epsilon = float(e.attribute("epsilon"))
    return e.newest("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)


@operator("com.microsoft.EmbedLayerNormalization", 7, 9, epsilon=1e-12, mask_index_type=0)
def embed_layer_normalization(e: Expansion) -> tuple[str, ...]:
    tables = [e.input(i) for i in range(2, 7)]
    return embedded(e, (e.input(0), e.input(1)), tables, e.input(7), e.input(8))


def embedded(
    e: Expansion, ids: tuple[str, str], tables: list[str], mask: str, positions: str
) -> tuple[str, ...]:
    """Embeddings added and normalised, lengths of sequences, and the sum.

    Args:
        ids: of words, and of segments ("" for none).
        tables: of words, positions and segments, scale and shift.
        positions: "" for those from 0 on.
    """
    words, places, kinds, gamma, beta = tables
    total = e.apply("Gather", words, ids[0])
    if positions:
        total = e.apply("Add", total, e.apply("Gather", places, positions))
    else:
        total = e.apply("Add", total, e.part(places, 0, e.whole(0), e.size(ids[0], 1)))
    if ids[1]:
        total = e.apply("Add", total, e.apply("Gather", kinds, ids[1]))
    lengths = ""
    if e.wants(1) and mask:
        lengths = e.newest("ReduceSum", mask, e.whole(1), keepdims=0)
    elif e.wants(1):
        none = np.zeros(1, dtype=np.int32)
        lengths = e.since(9, "ConstantOfShape", e.size(ids[0], 0), value=none)
    return _normalised(e, total, gamma, beta), lengths, total


@operator(
    "com.microsoft.GroupNorm", 3, 3, activation=int, channels_last=1, epsilon=1e-5, groups=int
)
def group_norm(e: Expansion) -> str:
    return _grouped(e, e.input(0))


@operator(
    "com.microsoft.SkipGroupNorm", 4, 5, activation=int, channels_last=1, epsilon=1e-5, groups=int
)
def skip_group_norm(e: Expansion) -> tuple[str, ...]:
    x, skip = e.input(0), e.input(3)
    if e.rank(skip) == 2:
        n, c = e.dims(skip)
        last = int(e.attribute("channels_last"))
        skip = e.reshape(skip, n, *((1, 1, c) if last else (c, 1, 1)))
    total = e.add(e.apply("Add", x, skip), e.input(4))
    return _grouped(e, total), total


def _grouped(e: Expansion, x: str) -> str:
    stated = {"epsilon": float(e.attribute("epsilon")), "num_groups": e.count("groups")}
    dtype, last = e.dtype(x), int(e.attribute("channels_last"))
    scale, shift = (e.cast(e.input(i), dtype) for i in (1, 2))
    inner = e.transpose(x, 0, 3, 1, 2) if last else x
    y = e.since(21, "GroupNormalization", inner, scale, shift, **stated)
    y = e.newest("silu", y) if int(e.attribute("activation")) else y
    return e.transpose(y, 0, 2, 3, 1) if last else y
