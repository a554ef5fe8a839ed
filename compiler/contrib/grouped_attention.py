"""GroupQueryAttention and RotaryEmbedding of com.microsoft.

    RotaryEmbedding(x, positions, cosines, sines)    as ONNX's; positions of one number are those
        from it on; `num_heads` is found from the tables where it is 0
    GroupQueryAttention(query, key?, value?, past key?, past value?, seqlens_k,
        total_sequence_length, cosines?, sines?, positions?, attention_bias?, ..., query norm?,
        key norm?)

Queries are [batch, length, features], or with keys and values behind them in the last axis; past
and present [batch, key heads, length, size]. Sequence b has seqlens_k[b] + 1 keys, of which the
last are new (a first run has none before it, and may be padded on the right): new keys are written
behind those that were there, a query sees keys up to its own (`local_window_size` of them), and is
turned by its position where `do_rotary` is 1. `softcap` bounds scores, `scale` multiplies them. The
buffer of keys is as long as the present keys are declared, or as total_sequence_length says where
it is a constant; that does not hold the values of total_sequence_length otherwise. Source: ONNX
Runtime, docs/ContribOperators.md. Quantised caches, sinks and smooth softmax are refused.
"""

from typing import Any

import numpy as np

from tilesmith.compiler.contrib.attention import attended, in_heads
from tilesmith.compiler.rewriting.expansion import Expansion, operator


@operator(
    "com.microsoft.RotaryEmbedding", 4, 4, interleaved=0, is_packed_batching=0, num_heads=0,
    rotary_embedding_dim=0, scale=1.0,
)  # fmt: skip
def rotary_embedding(e: Expansion) -> str:
    x, places, cosines, sines = (e.input(i) for i in range(4))
    if int(e.attribute("is_packed_batching")) or float(e.attribute("scale")) != 1.0:
        raise e.wrong("packed batches and scales other than 1 are not supported")
    dims, turning = e.dims(x), int(e.attribute("rotary_embedding_dim"))
    heads = int(e.attribute("num_heads"))
    if len(dims) == 3 and not heads:
        heads = dims[2] // (2 * e.dims(cosines)[1])
    if e.rank(places) == 1:
        rows = e.apply("Add", e.steps(e.size(x, len(dims) - 2)), places)
        whole = e.apply("Concat", e.size(x, 0), e.size(x, len(dims) - 2), axis=0)
        places = e.apply("Expand", e.unsqueeze(rows, 0), whole)
    stated = {"interleaved": int(e.attribute("interleaved")), "rotary_embedding_dim": turning}
    if len(dims) == 3:
        stated["num_heads"] = heads
    return e.newest("RotaryEmbedding", x, cosines, sines, places, **stated)


@operator(
    "com.microsoft.GroupQueryAttention", 7, 16, causal=1, do_rotary=0, k_quant_type="NONE",
    kv_cache_bit_width=0, kv_num_heads=int, local_window_size=-1, num_heads=int,
    qk_norm_epsilon=1e-6, qk_output=0, rotary_interleaved=0, scale=0.0, sliding_window_cache=0,
    smooth_softmax=-1, softcap=0.0, v_quant_type="NONE",
)  # fmt: skip
def group_query_attention(e: Expansion) -> tuple[str, ...]:
    _refuse(e)
    q, k, v = _operands(e)
    batch, _, rows, _ = e.dims(q)
    total = e.apply("Add", e.cast(e.input(5), "int64"), e.whole(1))
    behind = e.apply("Sub", e.reshape(total, -1), e.size(q, 2))
    starts = e.apply("Mul", behind, e.cast(e.apply("Less", e.whole(0), behind), "int64"))
    q, k = (_prepared(e, name, starts, i) for i, name in enumerate((q, k)))
    past, length = e.input(3), _present_length(e, rows)
    before = e.dims(past)[2] if past else 0
    window = int(e.attribute("local_window_size"))
    stated: dict[str, Any] = {"softcap": float(e.attribute("softcap"))}
    if length == rows + before and (batch == 1 or not before):
        windows = (window - 1 if window > 0 else -1, 0)
        earlier = (past, e.input(4)) if before else ("", "")
        return attended(e, (q, k, v), ("", e.input(10)), earlier, windows, **stated)
    keys, values = (
        _written(e, e.input(3 + i), name, starts, length) for i, name in enumerate((k, v))
    )
    mask = _seen(e, q, starts, length)
    y, *_ = attended(e, (q, keys, values), (mask, e.input(10)), ("", ""), **stated)
    return y, keys, values


def _refuse(e: Expansion) -> None:
    """Raise `ModelError` for what is not supported."""
    plain = {
        "causal": 1, "k_quant_type": "NONE", "v_quant_type": "NONE", "qk_output": 0,
        "sliding_window_cache": 0,
    }  # fmt: skip
    for name, only in plain.items():
        if e.attribute(name) != only:
            raise e.wrong(f"attribute '{name}' is {e.attribute(name)}; only {only} is supported")
    if int(e.attribute("smooth_softmax")) > 0 or e.input(11):
        raise e.wrong("sinks and smooth softmax are not supported")


def _operands(e: Expansion) -> tuple[str, str, str]:
    """Queries, keys and values in heads."""
    query, key, value = (e.input(i) for i in range(3))
    heads, shared = e.count("num_heads"), e.count("kv_num_heads")
    if not key:
        size = e.dims(query)[2] // (heads + 2 * shared)
        ends = [heads * size, (heads + shared) * size, (heads + 2 * shared) * size]
        key, value = (e.slice(query, 2, ends[i], ends[i + 1]) for i in (0, 1))
        query = e.slice(query, 2, 0, ends[0])
    return in_heads(e, query, heads), in_heads(e, key, shared), in_heads(e, value, shared)


def _prepared(e: Expansion, name: str, starts: str, which: int) -> str:
    """Queries (0) or keys (1) normalised and turned, where the model says so."""
    if weight := e.input(14 + which):
        epsilon = float(e.attribute("qk_norm_epsilon"))
        name = e.newest("RMSNormalization", name, weight, axis=-1, epsilon=epsilon)
    if not int(e.attribute("do_rotary")):
        return name
    size = e.dims(name)[3]
    places = e.input(9)
    if not places:
        places = e.apply("Add", e.reshape(starts, -1, 1), e.steps(e.size(name, 2)))
    turning = 2 * e.dims(e.input(7))[1]
    stated = {"interleaved": int(e.attribute("rotary_interleaved"))}
    if turning < size:
        stated["rotary_embedding_dim"] = turning
    return e.newest("RotaryEmbedding", name, e.input(7), e.input(8), places, **stated)


def _present_length(e: Expansion, rows: int) -> int:
    """Keys that a sequence's buffer has after the run."""
    before = e.dims(e.input(3))[2] if e.input(3) else 0
    total = e.value(e.input(6))
    if total is not None:
        return max(before, int(total.reshape(-1)[0]))
    if not before:
        return rows
    declared = e.declared(1)
    if declared is None or len(declared) != 4 or declared[2] < before:
        raise e.wrong(
            "the length of its present keys is not known; declare the shape of its second output, "
            "or make total_sequence_length a constant"
        )
    return declared[2]


def _written(e: Expansion, past: str, new: str, starts: str, length: int) -> str:
    """The buffer with new keys or values behind those that were there."""
    batch, heads, _, size = e.dims(new)
    before = e.dims(past)[2] if past else 0
    if before < length:
        room = e.constant(np.zeros((batch, heads, length - before, size)), e.dtype(new))
        past = e.apply("Concat", past, room, axis=2) if before else room
    return e.newest("TensorScatter", past, new, starts, axis=2)


def _seen(e: Expansion, query: str, starts: str, length: int) -> str:
    """What is added to scores so that a query sees keys up to its own, and no others."""
    rows = e.unsqueeze(e.steps(e.size(query, 2)), 1)
    places = e.apply("Sub", e.steps(e.whole(length)), rows)
    start = e.reshape(starts, -1, 1, 1, 1)
    later = e.apply("Greater", places, start)
    if (window := int(e.attribute("local_window_size"))) > 0:
        near = e.apply("Add", places, e.whole(window))
        later = e.apply("Or", later, e.apply("Not", e.apply("Greater", near, start)))
    low, zero = e.number(-np.inf, query), e.number(0.0, query)
    return e.apply("Where", later, low, zero)
