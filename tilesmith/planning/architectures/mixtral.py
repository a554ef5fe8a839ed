"""Decoders whose feed-forwards are mixtures of experts: Mixtral, Qwen 2 and 3 with experts.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from __future__ import annotations

from tilesmith.planning.architecture import Architecture, Layer, Operator, Product
from tilesmith.planning.architectures.llama import whole_decoder
from tilesmith.planning.architectures.parts import gated, grouped_attention, norm, routed
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.registry import families


@families.register("mixtral")
def mixtral(c: Configuration) -> Architecture:
    """Mixtral: every layer routes each token to 2 of 8 experts."""
    window = c.integer("sliding_window", 0, least=0)
    hidden = c.integer("hidden_size")
    experts = routed(
        hidden, c.integer("intermediate_size"),
        c.integer("num_local_experts", 8), c.integer("num_experts_per_tok", 2),
    )  # fmt: skip
    operators = _layer(c, grouped_attention(c, key_heads=8, window=window), experts)
    return whole_decoder(c, (Layer("decoder", operators, c.integer("num_hidden_layers")),))


@families.register("qwen2_moe")
def qwen2_moe(c: Configuration) -> Architecture:
    """Qwen 1.5 and 2 with experts: one shared expert behind a gate of its own."""
    hidden, shared = c.integer("hidden_size"), c.integer("shared_expert_intermediate_size", 5632)
    attention = grouped_attention(c, key_heads=16, bias=c.flag("qkv_bias", True))
    beside: tuple[Operator, ...] = (
        *gated(hidden, shared, name="shared expert"),
        Product("shared gate", hidden, 1, "none"),
    )
    return _sparse(c, attention, 60, 4, 1408, beside)


@families.register("qwen3_moe")
def qwen3_moe(c: Configuration) -> Architecture:
    """Qwen 3 with experts: 128 of them, none shared."""
    window = c.integer("sliding_window", 4096) if c.flag("use_sliding_window", False) else 0
    attention = grouped_attention(c, key_heads=4, width=128, normalised=True, window=window)
    return _sparse(c, attention, 128, 8, 768, ())


def _layer(
    c: Configuration, attention: tuple[Operator, ...], feed_forward: tuple[Operator, ...]
) -> tuple[Operator, ...]:
    hidden = c.integer("hidden_size")
    return (norm(hidden, "norm 0"), norm(hidden, "norm 1"), *attention, *feed_forward)


def _sparse(
    c: Configuration,
    attention: tuple[Operator, ...],
    count: int,
    active: int,
    inner: int,
    beside: tuple[Operator, ...],
) -> Architecture:
    """Every `decoder_sparse_step`-th layer has experts, the others (and `mlp_only_layers`) are
    dense.

    Args:
        count, active, inner: the family's defaults.
        beside: what every token passes besides its experts.
    """
    hidden, depth = c.integer("hidden_size"), c.integer("num_hidden_layers")
    step, dense_only = c.integer("decoder_sparse_step", 1), c.fields.get("mlp_only_layers") or []
    sparse = sum((n + 1) % step == 0 and n not in dense_only for n in range(depth))
    experts = routed(
        hidden, c.integer("moe_intermediate_size", inner),
        c.integer("num_experts", count), c.integer("num_experts_per_tok", active),
    )  # fmt: skip
    layers = [Layer("decoder with experts", _layer(c, attention, (*experts, *beside)), sparse)]
    if sparse < depth:
        dense = _layer(c, attention, gated(hidden, c.integer("intermediate_size")))
        layers.insert(0, Layer("dense decoder", dense, depth - sparse))
    return whole_decoder(c, tuple(layer for layer in layers if layer.repeats))
