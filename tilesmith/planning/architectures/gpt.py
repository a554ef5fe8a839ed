"""Decoders with plain feed-forwards: GPT-2, GPT-J, GPT-Neo, GPT-NeoX, OPT, BLOOM, Falcon, Phi.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.planning.architecture import (
    Architecture,
    Attention,
    Layer,
    Operator,
    Pointwise,
    Product,
)
from tilesmith.planning.architectures.parts import embedding, head, norm, plain
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.registry import families


@families.register("gpt2")
def gpt2(c: Configuration) -> Architecture:
    """GPT-2: learnt positions, tied embeddings."""
    width, inner = c.integer("n_embd"), c.integer("n_inner", 0, least=0)
    positions = c.integer("n_positions", 1024)
    layer = _layer(width, c.divided("n_embd", "n_head"), inner or 4 * width)
    return _whole(c, width, Layer("decoder", layer, c.integer("n_layer")), positions, tied=True)


@families.register("opt")
def opt(c: Configuration) -> Architecture:
    """OPT: learnt positions (two more than it uses), tied embeddings."""
    width, positions = c.integer("hidden_size"), c.integer("max_position_embeddings", 2048)
    size = c.divided("hidden_size", "num_attention_heads")
    layer = _layer(width, size, c.integer("ffn_dim"))
    depth = c.integer("num_hidden_layers")
    return _whole(c, width, Layer("decoder", layer, depth), positions, tied=True, spare=2)


@families.register("gpt_neox")
def gpt_neox(c: Configuration) -> Architecture:
    """GPT-NeoX and Pythia: rotary positions, a head of its own."""
    width = c.integer("hidden_size")
    size = c.divided("hidden_size", "num_attention_heads")
    layer = _layer(width, size, c.integer("intermediate_size"))
    return _whole(c, width, Layer("decoder", layer, c.integer("num_hidden_layers")), 0, tied=False)


@families.register("phi")
def phi(c: Configuration) -> Architecture:
    """Phi 1 to 2: attention and feed-forward side by side behind one norm, biases everywhere."""
    width = c.integer("hidden_size")
    size = c.divided("hidden_size", "num_attention_heads")
    layer = _layer(width, size, c.integer("intermediate_size"), norms=1)
    last = c.integer("num_hidden_layers")
    return _whole(c, width, Layer("decoder", layer, last), 0, tied=False, bias=True)


@families.register("gptj")
def gptj(c: Configuration) -> Architecture:
    """GPT-J: one norm, projections without biases, a head with one."""
    width, inner = c.integer("n_embd"), c.integer("n_inner", 0, least=0)
    layer = _layer(width, c.divided("n_embd", "n_head"), inner or 4 * width, norms=1, biases=0)
    return _whole(c, width, Layer("decoder", layer, c.integer("n_layer")), 0, tied=False, bias=True)


@families.register("gpt_neo")
def gpt_neo(c: Configuration) -> Architecture:
    """GPT-Neo: learnt positions; `attention_types` says which layers see a window."""
    width, depth = c.integer("hidden_size"), c.integer("num_layers")
    inner, size = c.integer("intermediate_size", 4 * width), c.divided("hidden_size", "num_heads")
    kinds = [
        kind
        for names, times in c.fields.get("attention_types") or [[["global", "local"], depth // 2]]
        for kind in list(names) * times
    ]
    local = kinds.count("local")
    layer = _layer(width, size, inner, biases=1)
    window = c.integer("window_size", 256)
    seen = tuple(replace(op, window=window) if isinstance(op, Attention) else op for op in layer)
    layers = (
        Layer("decoder", layer, depth - local),
        *([Layer("decoder with a window", seen, local)] if local else []),
    )
    whole = _whole(c, width, layers[0], c.integer("max_position_embeddings", 2048), tied=True)
    return replace(whole, layers=(whole.layers[0], *layers, whole.layers[-1]))


@families.register("bloom")
def bloom(c: Configuration) -> Architecture:
    """BLOOM: positions by distance, normalised embeddings."""
    width = c.integer("hidden_size")
    depth, heads = (
        c.integer(new if new in c else old)
        for new, old in (("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads"))
    )
    layer = _layer(width, width // heads, 4 * width)
    whole = _whole(c, width, Layer("decoder", layer, depth), 0, tied=True)
    first = whole.layers[0]
    tables = replace(first, operators=(*first.operators, norm(width, keeps="layer")))
    return replace(whole, layers=(tables, *whole.layers[1:]))


@families.register("falcon")
def falcon(c: Configuration) -> Architecture:
    """Falcon: attention and feed-forward side by side, one head of keys (7B) or a few."""
    width, bias = c.integer("hidden_size"), c.flag("bias", False)
    heads, size = c.integer("num_attention_heads"), c.divided("hidden_size", "num_attention_heads")
    grouped, beside = c.flag("new_decoder_architecture", False), c.flag("parallel_attn", True)
    groups = 1 if c.flag("multi_query", True) else heads
    groups = c.integer("num_kv_heads", heads) if grouped else groups
    norms = c.integer("num_ln_in_parallel_attn", 2) if grouped else 1 if beside else 2
    layer: tuple[Operator, ...] = (
        *(norm(width, f"norm {n}", keeps="layer") for n in range(norms)),
        Product("query", width, heads * size, "columns", unit=size, bias=bias),
        Product("key, value", width, groups * size, "heads", unit=size, times=2, bias=bias),
        Attention("attention", heads, groups, size, size),
        Product("output", heads * size, width, "rows", unit=size, bias=bias),
        Pointwise("residual", width),
        *plain(width, c.integer("ffn_hidden_size", 4 * width), bias=bias),
    )
    return _whole(c, width, Layer("decoder", layer, c.integer("num_hidden_layers")), 0, tied=True)


def _layer(
    width: int, size: int, inner: int, norms: int = 2, biases: int = 4
) -> tuple[Operator, ...]:
    """
    Args:
        biases: of attention's four projections, counted from its output.
    """
    heads = width // size
    return (
        *(norm(width, f"norm {n}", keeps="layer") for n in range(norms)),
        Product("query, key, value", width, width, "columns", unit=size, times=3, bias=biases > 1),
        Attention("attention", heads, heads, size, size),
        Product("output", width, width, "rows", unit=size, bias=biases > 0),
        Pointwise("residual", width),
        *plain(width, inner),
    )


def _whole(
    c: Configuration,
    width: int,
    layers: Layer,
    positions: int,
    *,
    tied: bool,
    spare: int = 0,
    bias: bool = False,
) -> Architecture:
    vocabulary = c.integer("vocab_size")
    tables = [embedding(vocabulary, width)]
    if positions:
        tables.append(embedding(positions + spare, width, "positions"))
    shared = c.flag("tie_word_embeddings", tied)
    last = (norm(width, keeps="layer"), head(width, vocabulary, tied=shared, bias=bias))
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="decoder",
        layers=(Layer("embedding", tuple(tables)), layers, Layer("head", last, last=True)),
        width=width,
        vocabulary=vocabulary,
        positions=positions or c.integer("max_position_embeddings", 0, least=0),
    )
