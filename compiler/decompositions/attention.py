"""Attention (opset 23 on) -> products, scale, mask and softmax, as older exporters write them.

    scores = scale Q K' (output 3, mode 0), softcap tanh(scores / softcap) (mode 1),
    + masks (mode 2), softmax (mode 3), times V

Earlier keys and values come before the new ones, and are outputs 1 and 2 with these. Sequences of
fewer key heads than query heads repeat them; a single query of each shares its keys among the rows
of one product instead. What is added to the scores is `attention_masks`'. A query that sees no key
has a result of 0; what is not a number in queries or keys stays.
"""

import math

import numpy as np

from tilesmith.compiler.decompositions.parts.attention_masks import mask_of
from tilesmith.compiler.decompositions.repetition import broadcast
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, typed_decompositions
from tilesmith.search_space.workloads.workload import shape_text

_ATTRIBUTES = {
    "is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode",
    "right_window_size", "scale", "softcap", "softmax_precision",
}  # fmt: skip
"""What is known here; any other changes what is computed."""


@typed_decompositions.register("Attention")
def attention(composer: Composer, node: Node) -> tuple[str, ...] | None:
    """See the module's docstring."""
    if not {name for name, _ in node.attributes} <= _ATTRIBUTES:
        return None
    numbers = [name for i, name in enumerate(node.inputs) if name and i not in (3, 6)]
    if any(composer.dtype(name) != "float32" for name in (*numbers, *node.writes)):
        return None
    if node.input(3) and composer.dtype(node.input(3)) not in ("float32", "bool"):
        return None
    query_heads, key_heads = (int(node.attribute(f"{n}_num_heads", 0)) for n in ("q", "kv"))
    query = _heads(composer, node.inputs[0], query_heads)
    key, value = (
        _with_earlier(composer, _heads(composer, node.inputs[i], key_heads), node.input(i + 3))
        for i in (1, 2)
    )
    batch, heads, rows, _ = composer.dims(query)
    shape = (batch, heads, rows, composer.dims(key)[2])
    earlier = composer.dims(node.input(4))[2] if node.input(4) else 0
    mask, guard = mask_of(composer, node, shape, earlier)
    shared = heads // composer.dims(key)[1]
    if shared > 1 and rows == 1:
        result, shown = _together(composer, node, (query, key, value), (mask, guard))
    else:
        keys, values = (_repeated(composer, name, shared) for name in (key, value))
        result, shown = _weighed(composer, node, (query, keys, values), (mask, guard))
    if node.writes[0] and len(composer.dims(node.writes[0])) == 3:
        width = composer.dims(value)[3]
        joined = composer.transpose(result, (0, 2, 1, 3))
        result = composer.view(joined, (batch, rows, heads * width))
    return result, key, value, shown


def _heads(composer: Composer, name: str, heads: int) -> str:
    """[batch, heads, length, features] of that or of [batch, length, heads * features]."""
    dims = composer.dims(name)
    if len(dims) == 4:
        return name
    batch, length, features = dims
    return composer.transpose(
        composer.view(name, (batch, length, heads, features // heads)), (0, 2, 1, 3)
    )


def _with_earlier(composer: Composer, name: str, earlier: str) -> str:
    if not earlier or not composer.dims(earlier)[2]:
        return name
    return composer.concat(2, earlier, name)


def _repeated(composer: Composer, name: str, times: int) -> str:
    """Each head `times` times."""
    if times == 1:
        return name
    batch, heads, length, features = composer.dims(name)
    apart = composer.view(name, (batch, heads, 1, length, features))
    whole = broadcast(composer, apart, (batch, heads, times, length, features))
    return composer.view(whole, (batch, heads * times, length, features))


def _together(
    composer: Composer, node: Node, operands: tuple[str, str, str], masking: tuple[str, bool]
) -> tuple[str, str]:
    """One query of each head: those that share keys are the rows of one product."""
    query, key, value = operands
    (batch, heads, _, depth), groups = composer.dims(query), composer.dims(key)[1]
    mask, guard = masking
    if mask and len(composer.dims(mask)) == 4 and composer.dims(mask)[1] > 1:
        lead, _, _, keys = composer.dims(mask)
        mask = composer.view(mask, (lead, groups, heads // groups, keys))
    rows = composer.view(query, (batch, groups, heads // groups, depth))
    result, shown = _weighed(composer, node, (rows, key, value), (mask, guard))
    width, keys = composer.dims(value)[3], composer.dims(key)[2]
    if shown:
        shown = composer.view(shown, (batch, heads, 1, keys))
    return composer.view(result, (batch, heads, 1, width)), shown


def _weighed(
    composer: Composer, node: Node, operands: tuple[str, str, str], masking: tuple[str, bool]
) -> tuple[str, str]:
    """Values mixed by the softmax of scores, and the output that shows the scores ("")."""
    query, key, value = operands
    shape = (*composer.dims(query)[:3], composer.dims(key)[2])
    turned = composer.transpose(key, (0, 1, 3, 2))
    scores = composer.matmul(query, turned)
    stated = node.attribute("scale")
    scale = 1.0 / math.sqrt(composer.dims(query)[3]) if not stated else float(stated)
    scores = composer.pointwise("Mul", scores, composer.number(scale))
    stages = [scores]
    if cap := float(node.attribute("softcap", 0.0)):
        inner = composer.pointwise("Tanh", composer.pointwise("Div", scores, composer.number(cap)))
        scores = composer.pointwise("Mul", inner, composer.number(cap))
    stages.append(scores)
    mask, guard = masking
    scores = composer.pointwise("Add", scores, mask) if mask else scores
    stages.append(scores)
    weights = composer.apply("Softmax", scores, shape=shape, axis=-1)
    if guard:  # a score of minus infinity has no weight: beside others, and where all are so
        lowest = composer.number(float(np.finfo(np.float32).min))
        left_out = composer.pointwise("Less", scores, lowest, dtype="bool")
        weights = composer.pointwise("Where", left_out, composer.number(0.0), weights)
    stages.append(weights)
    result = composer.matmul(weights, value)
    shown = len(node.outputs) > 3 and bool(node.outputs[3])
    return result, stages[int(node.attribute("qk_matmul_output_mode", 0))] if shown else ""


@typed_decompositions.register("TensorScatter")
def tensor_scatter(composer: Composer, node: Node) -> str | None:
    """Rows of the cache are written where they are; of several sequences: where a place of it is
    one that is written, the update's, else what was there."""
    past, update, starts = node.input(0), node.input(1), node.input(2)
    if composer.dtype(past) != "float32":
        return None
    shape, given = composer.dims(past), composer.dims(update)
    axis = int(node.attribute("axis", -2)) % len(shape)
    if starts and shape[0] == 1 and axis and node.attribute("mode", "linear") == "linear":
        return _written(composer, (past, update, starts), axis)
    extent, length, rest = shape[axis], given[axis], len(shape) - 1 - axis
    places = np.arange(extent).reshape(-1, *(1,) * rest)
    own = composer.constant(places)
    if starts:
        lead = composer.view(starts, (shape[0], *(1,) * (len(shape) - 1)))
        own = composer.pointwise("Sub", own, composer.cast(lead, "int64"), dtype="int64")
    if starts and node.attribute("mode", "linear") == "circular":
        own = composer.pointwise("Mod", own, composer.constant(np.array(extent)), dtype="int64")
    zero, end = composer.constant(np.array(0)), composer.constant(np.array(length))
    inside = composer.pointwise("Less", own, end, dtype="bool")
    if starts:
        from_start = composer.pointwise("GreaterOrEqual", own, zero, dtype="bool")
        inside = composer.pointwise("And", inside, from_start, dtype="bool")
    rows = update
    if length > 1:
        kept = composer.pointwise(
            "Min", own, composer.constant(np.array(length - 1)), dtype="int64"
        )
        kept = composer.pointwise("Max", kept, zero, dtype="int64")
        rows = _picked(composer, update, kept, shape, axis)
    return composer.pointwise("Where", inside, rows, past)


def _written(composer: Composer, operands: tuple[str, str, str], axis: int) -> str:
    """One sequence's cache with an update's rows along an axis, from a start on."""
    past, update, starts = operands
    shape, length = composer.dims(past), composer.dims(update)[axis]
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    own = composer.constant(np.arange(length))
    places = composer.pointwise("Add", composer.cast(starts, "int64"), own, dtype="int64")
    data = composer.view(past, (before, shape[axis], behind))
    rows = composer.view(update, (before, length, behind))
    operands = (data, composer.view(places, (length, 1)), rows)
    stated = {"shape": shape_text(composer.dims(data)), "indices": f"{length}x1", "lead": 1}
    result = composer.kernel("scatter_nd", operands, composer.dims(data), **stated)
    return composer.view(result, shape)


def _picked(composer: Composer, update: str, places: str, shape: tuple[int, ...], axis: int) -> str:
    """`update` at each place of its axis, for one sequence or each of several."""
    if composer.dims(places)[0] == 1 or len(composer.dims(places)) < len(shape):
        flat = composer.view(places, (shape[axis],))
        return composer.apply("Gather", update, flat, shape=shape, axis=axis)
    zeros = composer.constant(np.zeros(shape, dtype=np.int64))
    every = composer.pointwise("Add", places, zeros, dtype="int64")
    return composer.apply("GatherElements", update, every, shape=shape, axis=axis)
