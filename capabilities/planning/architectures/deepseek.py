"""DeepSeek V2, V3 and R1: latent attention, first layers dense, then shared and routed experts.

Keys and values are one latent vector a token (`kv_lora_rank`) and one rotated key for all heads
(`qk_rope_head_dim`), which is what the cache holds. Decoding folds the latent's expansion into
queries and outputs, so that attention works on the latent itself (the paper's weight absorption).

Source: modeling_deepseek.py of DeepSeek-V3; DeepSeek-V2 (arXiv 2405.04434), section 2.1. The module
for multi-token prediction (14B of the checkpoint's 685B) is no part of the model and not counted.
"""

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.architectures.llama import whole_decoder
from tilesmith.capabilities.planning.architectures.parts import gated, norm, routed
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("deepseek_v3")
@families.register("kimi_k2")
def deepseek_v3(c: Configuration) -> Architecture:
    """DeepSeek V3 and R1, Kimi K2: a bias of the router's choice for each expert."""
    return _deepseek(c, choice_bias=True)


@families.register("deepseek_v2")
def deepseek_v2(c: Configuration) -> Architecture:
    """DeepSeek V2 and its Lite, whose queries have no latent."""
    return _deepseek(c, choice_bias=False)


def _deepseek(c: Configuration, *, choice_bias: bool) -> Architecture:
    hidden, depth = c.integer("hidden_size"), c.integer("num_hidden_layers")
    first = min(c.integer("first_k_dense_replace", 3, least=0), depth)
    inner = c.integer("moe_intermediate_size")
    experts = routed(
        hidden, inner, c.integer("n_routed_experts"), c.integer("num_experts_per_tok"),
        bias=choice_bias,
    )  # fmt: skip
    shared = c.integer("n_shared_experts", 1, least=0) * inner
    beside = gated(hidden, shared, name="shared expert") if shared else ()
    norms, attention = (norm(hidden, "norm 0"), norm(hidden, "norm 1")), latent_attention(c)
    dense = gated(hidden, c.integer("intermediate_size"))
    layers = (
        Layer("dense decoder", (*norms, *attention, *dense), first),
        Layer("decoder with experts", (*norms, *attention, *experts, *beside), depth - first),
    )
    return whole_decoder(c, tuple(layer for layer in layers if layer.repeats))


def latent_attention(c: Configuration) -> tuple[Operator, ...]:
    """Projections into latents and out of them, and the attention between."""
    hidden, heads = c.integer("hidden_size"), c.integer("num_attention_heads")
    plain, rotated = c.integer("qk_nope_head_dim", 128), c.integer("qk_rope_head_dim", 64)
    value, latent = c.integer("v_head_dim", 128), c.integer("kv_lora_rank", 512)
    width = plain + rotated
    queries: tuple[Operator, ...] = (
        ProductOperator("query", hidden, heads * width, "columns", unit=width),
    )
    if "q_lora_rank" in c:
        low = c.integer("q_lora_rank")
        queries = (
            ProductOperator("query down", hidden, low, "none"),
            norm(low, "query norm"),
            ProductOperator("query up", low, heads * width, "columns", unit=width),
        )
    return (
        *queries,
        ProductOperator("key, value down", hidden, latent + rotated, "none"),
        norm(latent, "latent norm"),
        ProductOperator(
            "key, value up", latent, heads * (plain + value), "columns", unit=plain + value
        ),
        PointwiseOperator("rotary", (heads + 1) * rotated, operands=2, split=True),
        AttentionOperator("attention", heads, heads, width, value, latent=latent + rotated),
        ProductOperator("output", heads * value, hidden, "rows", unit=value),
        PointwiseOperator("residual", hidden, operands=2),
    )
