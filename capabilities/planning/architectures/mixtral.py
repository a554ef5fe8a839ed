"""Decoders whose feed-forwards are mixtures of experts: Mixtral, Phi 3.5, GPT-OSS, OLMoE, Granite,
DBRX, Qwen 2 and 3, Llama 4, GLM 4.5.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.architectures.llama import whole_decoder
from tilesmith.capabilities.planning.architectures.parts import (
    Habits,
    gated,
    grouped_attention,
    routed,
)
from tilesmith.capabilities.planning.architectures.windows import chunks, windows
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families
from tilesmith.search_space.support.errors import ModelError


@families.register("mixtral")
def mixtral(c: Configuration) -> Architecture:
    """Mixtral: every layer routes each token to 2 of 8 experts."""
    seen = {c.integer("sliding_window", 0, least=0): c.integer("num_hidden_layers")}
    return _all_sparse(c, Habits(key_heads=8), (8, 2), seen)


@families.register("granitemoe")
def granitemoe(c: Configuration) -> Architecture:
    """Granite 3 with experts."""
    return _all_sparse(c, Habits(), (8, 2), {0: c.integer("num_hidden_layers")})


@families.register("phimoe")
def phimoe(c: Configuration) -> Architecture:
    """Phi 3.5 with experts: layer normalisation."""
    return _all_sparse(c, Habits(key_heads=8, norm="layer"), (16, 2), windows(c))


@families.register("olmoe")
def olmoe(c: Configuration) -> Architecture:
    """OLMoE: 64 experts, normalised queries and keys."""
    habits = Habits(normalised="all")
    return _all_sparse(c, habits, (64, 8), {0: c.integer("num_hidden_layers")})


@families.register("gpt_oss")
def gpt_oss(c: Configuration) -> Architecture:
    """GPT-OSS: biases everywhere, every second layer sees a window; each head has a sink."""
    habits = Habits(key_heads=8, width=64, bias=True, output_bias=True)
    seen = windows(c, 128, lambda layer: layer % 2 == 0)
    whole = _all_sparse(c, habits, (128, 4), seen, biased=True)
    heads = c.integer("num_attention_heads")
    layers = tuple(
        replace(layer, operators=tuple(_with_sinks(op, heads) for op in layer.operators))
        for layer in whole.layers
    )
    return replace(whole, layers=layers)


def _with_sinks(operator: Operator, heads: int) -> Operator:
    """The rotation keeps the sinks: one number a head that takes part in softmax."""
    if isinstance(operator, PointwiseOperator) and operator.name == "rotary":
        return replace(operator, parameters=heads)
    return operator


def _all_sparse(
    c: Configuration,
    habits: Habits,
    experts: tuple[int, int],
    seen: Mapping[int, int],
    *,
    biased: bool = False,
) -> Architecture:
    """Every layer has experts.

    Args:
        experts: how many, and how many a row visits, where a file is silent.
        seen: how many layers see how many keys at most (0: all).
        biased: whether router and experts have biases.
    """
    hidden, inner = c.integer("hidden_size"), c.integer("intermediate_size")
    count, active = counts(c, *experts)
    feed = routed(hidden, inner, count, active, bias=biased, biased=biased)
    layers = tuple(
        Layer("decoder", (*habits.layer_norms(hidden), *grouped_attention(c, habits, w), *feed), n)
        for w, n in seen.items()
    )
    return whole_decoder(c, layers, habits)


def counts(c: Configuration, count: int, active: int) -> tuple[int, int]:
    """Experts, and how many a row visits; versions of transformers name them differently."""
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if name in c:
            count = c.integer(name)
            break
    for name in ("num_experts_per_tok", "experts_per_token"):
        if name in c:
            active = c.integer(name)
            break
    if active > count:
        raise ModelError(
            f"'{c.source}': a token visits {active} experts of {count}; at most {count} are allowed"
        )
    return count, active


@families.register("dbrx")
def dbrx(c: Configuration) -> Architecture:
    """DBRX: projections of attention in one, layer normalisation without offsets, 4 experts."""
    hidden, size = c.integer("d_model"), c.divided("d_model", "n_heads")
    heads = c.integer("n_heads")
    inside, feed = c.inner("attn_config"), c.inner("ffn_config")
    groups = inside.integer("kv_n_heads", 1)
    count, active = feed.integer("moe_num_experts", 4), feed.integer("moe_top_k", 1)
    layer: tuple[Operator, ...] = (
        *Habits().layer_norms(hidden),
        ProductOperator("query", hidden, heads * size, "columns", unit=size),
        ProductOperator(
            "key, value", hidden, groups * size, "heads", unit=size, times=2, heads=heads
        ),
        PointwiseOperator("rotary", (heads + groups) * size, operands=2, split=True),
        AttentionOperator("attention", heads, groups, size, size),
        ProductOperator("output", heads * size, hidden, "rows", unit=size),
        PointwiseOperator("residual", hidden, operands=2),
        *routed(hidden, feed.integer("ffn_hidden_size", 3584), count, active),
    )
    named = {"hidden_size": "d_model", "max_position_embeddings": "max_seq_len"}
    fields = {new: c.fields[old] for new, old in named.items() if old in c}
    return whole_decoder(
        replace(c, fields={**c.fields, **fields}), (Layer("decoder", layer, c.integer("n_layers")),)
    )


@families.register("qwen2_moe")
def qwen2_moe(c: Configuration) -> Architecture:
    """Qwen 1.5 and 2 with experts: one shared expert behind a gate of its own."""
    hidden, shared = c.integer("hidden_size"), c.integer("shared_expert_intermediate_size", 5632)
    habits = Habits(key_heads=16, bias=c.flag("qkv_bias", True), output_bias=False)
    beside: tuple[Operator, ...] = (
        *gated(hidden, shared, name="shared expert"),
        ProductOperator("shared gate", hidden, 1, "none"),
    )
    return _sparse(c, habits, (60, 4, 1408), beside)


@families.register("qwen3_moe")
@families.register("qwen3_vl_moe_text")
def qwen3_moe(c: Configuration) -> Architecture:
    """Qwen 3 with experts: 128 of them, none shared."""
    return _sparse(c, Habits(key_heads=4, normalised="heads"), (128, 8, 768), ())


def _sparse(
    c: Configuration,
    habits: Habits,
    experts: tuple[int, int, int],
    beside: tuple[Operator, ...],
) -> Architecture:
    """Every `decoder_sparse_step`-th layer has experts, the others (and `mlp_only_layers`) are
    dense.

    Args:
        experts: how many, how many a row visits, how wide each, where a file is silent.
        beside: what every token passes besides its experts.
    """
    hidden, depth = c.integer("hidden_size"), c.integer("num_hidden_layers")
    window = c.integer("sliding_window", 4096) if c.flag("use_sliding_window", False) else 0
    common = (*habits.layer_norms(hidden), *grouped_attention(c, habits, window))
    step, dense_only = c.integer("decoder_sparse_step", 1), c.listed("mlp_only_layers") or ()
    sparse = sum((n + 1) % step == 0 and n not in dense_only for n in range(depth))
    count, active = counts(c, *experts[:2])
    feed = routed(hidden, c.integer("moe_intermediate_size", experts[2]), count, active)
    layers = [Layer("decoder with experts", (*common, *feed, *beside), sparse)]
    if sparse < depth:
        dense = gated(hidden, c.integer("intermediate_size"))
        layers.insert(0, Layer("dense decoder", (*common, *dense), depth - sparse))
    return whole_decoder(c, tuple(layer for layer in layers if layer.repeats), habits)


@families.register("llama4_text")
def llama4(c: Configuration) -> Architecture:
    """Llama 4: one routed and one shared expert in every (Scout) or every second layer (Maverick);
    three layers of four attend within chunks."""
    hidden, depth, inner = (
        c.integer(name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size")
    )
    step, habits = c.integer("interleave_moe_layer_step", 1), Habits(key_heads=8, width=128)
    with_experts = set(c.listed("moe_layers") or range(step - 1, depth, step))
    count, active = counts(c, 16, 1)
    shared = gated(hidden, inner, name="shared expert")
    sparse = (*routed(hidden, inner, count, active), *shared)
    dense = gated(hidden, c.integer("intermediate_size_mlp", 2 * inner))
    kinds = Counter((window, n in with_experts) for n, window in enumerate(chunks(c)))
    layers = tuple(
        Layer(
            "decoder with experts" if routes else "dense decoder",
            (
                *habits.layer_norms(hidden),
                *grouped_attention(c, habits, window),
                *(sparse if routes else dense),
            ),
            number,
        )
        for (window, routes), number in kinds.items()
    )
    return whole_decoder(c, layers, habits)


@families.register("glm4_moe")
def glm4_moe(c: Configuration) -> Architecture:
    """GLM 4.5 and 4.6: first layers dense, then shared and routed experts."""
    normalised = Habits(key_heads=8, normalised="heads")
    habits = normalised if c.flag("use_qk_norm", False) else Habits(key_heads=8)
    habits = replace(habits, bias=c.flag("attention_bias", False), output_bias=False)
    hidden, depth = c.integer("hidden_size"), c.integer("num_hidden_layers")
    first = min(c.integer("first_k_dense_replace", 1, least=0), depth)
    inner, (count, active) = c.integer("moe_intermediate_size", 1408), counts(c, 128, 8)
    experts = routed(hidden, inner, count, active, bias=True)
    shared = gated(hidden, c.integer("n_shared_experts", 1) * inner, name="shared expert")
    common = (*habits.layer_norms(hidden), *grouped_attention(c, habits))
    layers = (
        Layer("dense decoder", (*common, *gated(hidden, c.integer("intermediate_size"))), first),
        Layer("decoder with experts", (*common, *experts, *shared), depth - first),
    )
    return whole_decoder(c, tuple(layer for layer in layers if layer.repeats), habits)
