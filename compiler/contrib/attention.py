"""Attention of com.microsoft -> ONNX's Attention, between projections and masks of its own.

    Attention(x, w, bias?, mask?, past?, attention_bias?)
        x [batch, length, features] times w gives queries, keys and values one behind the other
        (`qkv_hidden_sizes`, a third each if left out), cut into `num_heads` heads. past and present
        hold keys and values as [2, batch, heads, length, size].
    QAttention(x, w, bias, sx, sw, mask?, zx?, zw?, past?)    the same of bytes
    MultiHeadAttention(query, key?, value?, bias?, padding mask?, attention_bias?, past key?,
        past value?)    queries [batch, length, features], or with keys and values packed as
        [batch, length, heads, 3, size]; keys likewise, or with values [batch, length, heads, 2,
        size], or as [batch, heads, length, size]

A mask of whole numbers is 0 where a key (of each query) is left out: [batch, keys], [batch,
queries, keys], [batch, 1, most, most] for buffers; of one axis it says how many keys each sequence
has, or behind these where its keys start. What is left out is lowered by `mask_filter_value`
(-10000), what comes after a query too where `unidirectional` is 1. Scores are multiplied by `scale`
(1 / sqrt(size)). Source: ONNX Runtime, docs/ContribOperators.md. Shared buffers and rotations
inside these operators are refused.
"""

import numpy as np

from tilesmith.compiler.contrib.quantised_products import scaled_product
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.expansion import Expansion, operator

FILTER = -10000.0


@operator(
    "com.microsoft.Attention", 2, 7, do_rotary=0, mask_filter_value=FILTER, num_heads=int,
    past_present_share_buffer=0, qkv_hidden_sizes=(), rotary_embedding_dim=0, scale=0.0,
    unidirectional=0,
)  # fmt: skip
def attention(e: Expansion) -> tuple[str, ...]:
    if e.input(6):
        raise e.wrong("buffers shared by past and present are not supported")
    projected = e.add(e.apply("MatMul", e.input(0), e.input(1)), e.input(2))
    sizes = tuple(int(n) for n in e.attribute("qkv_hidden_sizes"))
    return _attended(e, projected, sizes, (e.input(3), e.input(5)), e.input(4))


@operator(
    "com.microsoft.QAttention", 5, 9, do_rotary=0, mask_filter_value=FILTER, num_heads=int,
    past_present_share_buffer=0, scale=0.0, unidirectional=0,
)  # fmt: skip
def quantised_attention(e: Expansion) -> tuple[str, ...]:
    x, weight = ((e.input(i), e.input(i + 3), e.input(i + 6)) for i in (0, 1))
    projected = e.add(scaled_product(e, x, weight), e.input(2))
    return _attended(e, projected, (), (e.input(5), ""), e.input(8))


def _attended(
    e: Expansion, projected: str, sizes: tuple[int, ...], masks: tuple[str, str], past: str
) -> tuple[str, ...]:
    """Attention of queries, keys and values one behind the other in the last axis."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if int(e.attribute(name)):
            raise e.wrong(f"attribute '{name}' is {e.attribute(name)}; only 0 is supported")
    q, k, v = _thirds(e, projected, sizes, e.count("num_heads"))
    earlier = ["", ""]
    if past:
        earlier = [e.squeeze(e.slice(past, 0, i, i + 1), 0) for i in (0, 1)]
    mask = mask_of(e, masks[0], (q, k, earlier[0]))
    y, key, value = attended(e, (q, k, v), (mask, masks[1]), (earlier[0], earlier[1]))
    if not e.wants(1):
        return (y,)
    pair = [e.unsqueeze(name, 0) for name in (key, value)]
    return y, e.apply("Concat", *pair, axis=0)


def _thirds(e: Expansion, projected: str, sizes: tuple[int, ...], heads: int) -> list[str]:
    """[batch, heads, length, size] of queries, keys and values."""
    width = e.dims(projected)[2]
    if not sizes or len(set(sizes)) == 1:
        size = width // 3 // heads
        apart = e.transpose(e.reshape(projected, 0, 0, 3, heads, size), 2, 0, 3, 1, 4)
        parts = [e.slice(apart, 0, i, i + 1) for i in range(3)]
        return [e.squeeze(part, 0) for part in parts]
    operands, start = [], 0
    for width in sizes:
        operands.append(in_heads(e, e.slice(projected, 2, start, start + width), heads))
        start += width
    return operands


def in_heads(e: Expansion, name: str, heads: int) -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    if e.dims(name)[-1] % heads:
        raise e.wrong(f"{e.dims(name)[-1]} features are no multiple of {heads} heads")
    return e.transpose(e.reshape(name, 0, 0, heads, e.dims(name)[-1] // heads), 0, 2, 1, 3)


def attended(
    e: Expansion,
    operands: tuple[str, str, str],
    masks: tuple[str, str],
    earlier: tuple[str, str],
    windows: tuple[int, int] = (-1, -1),
    **stated: float,
) -> tuple[str, str, str]:
    """[batch, length, heads * size] that ONNX's Attention gives, and all keys and values.

    Args:
        operands: queries, keys, values as [batch, heads, length, size].
        masks: summands of the scores, "" for none.
        earlier: keys and values before these, "" for none.
        windows: as `visible`.
    """
    mask = e.add(*masks) if masks[0] else masks[1]
    known = e.node.attribute
    if scale := float(known("scale", 0.0)):
        stated["scale"] = scale
    if known("unidirectional", 0):
        windows = (-1, 0)
    if windows != (-1, -1):
        keep = visible(e, (operands[0], operands[1], earlier[0]), *windows)
        hidden = lowered(e, keep, operands[0])
        mask = e.apply("Add", mask, hidden) if mask else hidden
    inputs = (*operands, mask, *earlier)
    y, key, value = (
        e.newest_outputs(3, "Attention", *inputs, **stated)
        if earlier[0]
        else (e.newest("Attention", *inputs, **stated), *operands[1:])
    )
    return e.reshape(e.transpose(y, 0, 2, 1, 3), 0, 0, -1), key, value


def mask_of(e: Expansion, name: str, operands: tuple[str, str, str]) -> str:
    """A mask operand as summand of the scores, "" for none.

    Args:
        operands: queries, keys and earlier keys ("" for none), in heads.
    """
    if not name:
        return ""
    query, key, past = operands
    before = e.size(past, 2) if past else e.whole(0)
    keys = e.apply("Add", before, e.size(key, 2))
    rank = e.rank(name)
    if rank == 1:
        keep = _lengths(e, name, e.size(query, 0), keys)
    elif rank == 4:
        end = e.apply("Add", before, e.size(query, 2))
        keep = e.cast(e.part(e.part(name, 2, before, end), 3, e.whole(0), keys), "bool")
    else:
        keep = e.cast(e.unsqueeze(name, *((1, 2) if rank == 2 else (1,))), "bool")
    like = e.input(0) if e.dtype(e.input(0)).startswith("float") else e.input(2)
    low = e.number(float(e.attribute("mask_filter_value")), like)
    return e.apply("Where", keep, e.number(0.0, like), low)


def _lengths(e: Expansion, name: str, batch: str, keys: str) -> str:
    """Whether each key is one that a sequence has."""
    count = e.dims(name)[0]
    numbers = e.unsqueeze(e.cast(name, "float32"), 1, 2, 3)
    places = e.cast(e.steps(keys), "float32")
    keep = e.apply("Less", places, e.part(numbers, 0, e.whole(0), batch))
    sequences = e.value(batch)
    if sequences is not None and count == int(sequences[0]):
        return keep
    if sequences is not None and count != 2 * int(sequences[0]):
        raise e.wrong(
            f"its mask has {count} numbers for {int(sequences[0])} sequences; as many ends, or "
            "these and as many starts, are supported"
        )
    starts = e.part(numbers, 0, batch, e.whole(count))
    return e.apply("And", keep, e.apply("Not", e.apply("Less", places, starts)))


def visible(e: Expansion, operands: tuple[str, str, str], left: int, right: int) -> str:
    """Whether a query sees a key: those at most so far before and behind it, -1 for all.

    Args:
        operands: queries, keys and earlier keys ("" for none), in heads or not.
    """
    query, key, past = operands
    axis = e.rank(query) - 2
    rows, keys = e.size(query, axis), e.size(key, axis)
    places = e.unsqueeze(e.steps(rows), 1)
    if past:
        before = e.size(past, 2)
        keys, places = e.apply("Add", keys, before), e.apply("Add", places, before)
    ahead = e.apply("Sub", e.steps(keys), places)
    keep = ""
    if right >= 0:
        keep = e.apply("Not", e.apply("Greater", ahead, e.whole(right)))
    if left >= 0:
        near = e.apply("Not", e.apply("Less", ahead, e.whole(-left)))
        keep = e.apply("And", keep, near) if keep else near
    return keep


def _is_positional(node: Node) -> bool:
    sided = any(int(node.attribute(f"{s}_window_size", -1)) >= 0 for s in ("left", "right"))
    return not node.input(6) and (int(node.attribute("is_causal", 0)) == 1 or sided)


_WINDOWS = {"left_window_size": -1, "right_window_size": -1}


@operator(
    "ai.onnx.Attention", 3, 7, when=_is_positional, is_causal=0, kv_num_heads=0, q_num_heads=0,
    qk_matmul_output_mode=0, scale=0.0, softcap=0.0, softmax_precision=0, **_WINDOWS,
)  # fmt: skip
def positional_attention(e: Expansion) -> tuple[str, ...]:
    """ONNX's own with causality or windows: these become its mask, made of sizes."""
    left, right = (int(e.attribute(name)) for name in _WINDOWS)
    if int(e.attribute("is_causal")):
        right = 0
    inputs = [e.input(i) for i in range(6)]
    stated = {
        name: value for name, value in e.node.attributes
        if name not in ("is_causal", *_WINDOWS)
    }  # fmt: skip
    count = max((i + 1 for i in range(4) if e.wants(i)), default=1)
    keep = visible(e, (inputs[0], inputs[1], inputs[4]), left, right)
    shorter = inputs[3] and e.dims(inputs[3])[-1] < e.dims(keep)[-1]
    if shorter:
        stated |= {name: value for name, value in e.node.attributes if name not in stated}
    elif not inputs[3]:
        inputs[3] = keep
    elif e.dtype(inputs[3]) == "bool":
        inputs[3] = e.apply("And", inputs[3], keep)
    else:
        inputs[3] = e.apply("Add", inputs[3], lowered(e, keep, inputs[3]))
    return tuple(e.newest_outputs(count, "Attention", *inputs, **stated))


def lowered(e: Expansion, keep: str, like: str) -> str:
    """What is added to scores: minus infinity where keys are not kept."""
    return e.apply("Where", keep, e.number(0.0, like), e.number(-np.inf, like))


# -- several operands ---------------------------------------------------------------------------
@operator(
    "com.microsoft.MultiHeadAttention", 1, 10, mask_filter_value=FILTER, num_heads=int, scale=0.0,
    unidirectional=0,
)  # fmt: skip
def multi_head_attention(e: Expansion) -> tuple[str, ...]:
    if e.input(8) or e.input(9):
        raise e.wrong("buffers shared by past and present are not supported")
    heads = e.count("num_heads")
    operands = _unpacked(e, heads)
    mask = mask_of(e, e.input(4), (operands[0], operands[1], e.input(6)))
    return attended(e, operands, (mask, e.input(5)), (e.input(6), e.input(7)))


def _unpacked(e: Expansion, heads: int) -> tuple[str, str, str]:
    """Queries, keys and values in heads, their biases added."""
    query, key, value, bias = (e.input(i) for i in range(4))
    if not key:
        q, k, v = (_packed(e, query, i) for i in range(3))
    elif not value:
        q, (k, v) = in_heads(e, query, heads), (_packed(e, key, i) for i in range(2))
    else:
        whole = e.rank(key) == 4
        q = in_heads(e, query, heads)
        k, v = (name if whole else in_heads(e, name, heads) for name in (key, value))
    if not bias:
        return q, k, v
    operands, start = [], 0
    for name in (q, k, v):
        size = e.dims(name)[3]
        part = e.slice(bias, 0, start, start + heads * size)
        start += heads * size
        given = name in (key, value)  # in heads already: projected before
        operands.append(name if given else e.apply("Add", name, e.reshape(part, 1, heads, 1, size)))
    return operands[0], operands[1], operands[2]


def _packed(e: Expansion, name: str, position: int) -> str:
    """One of what is packed as [batch, length, heads, which, size], in heads."""
    part = e.slice(name, 3, position, position + 1)
    return e.transpose(e.squeeze(part, 3), 0, 2, 1, 3)
