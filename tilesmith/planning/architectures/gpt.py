"""Decoders with plain feed-forwards: GPT-2, OPT, GPT-NeoX, Phi.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from __future__ import annotations

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


def _layer(width: int, size: int, inner: int, norms: int = 2) -> tuple[Operator, ...]:
    heads = width // size
    return (
        *(norm(width, f"norm {n}", bias=True) for n in range(norms)),
        Product("query, key, value", width, width, "columns", unit=size, times=3, bias=True),
        Attention("attention", heads, heads, size, size),
        Product("output", width, width, "rows", unit=size, bias=True),
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
    last = (norm(width, bias=True), head(width, vocabulary, tied=shared, bias=bias))
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="decoder",
        layers=(Layer("embedding", tuple(tables)), layers, Layer("head", last, last=True)),
        width=width,
        vocabulary=vocabulary,
        positions=positions or c.integer("max_position_embeddings", 0, least=0),
    )
