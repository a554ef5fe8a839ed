"""Dense decoders with RMS normalisation before, gated feed-forwards and grouped queries: Llama,
Mistral, Qwen 2, 2.5 and 3, Gemma and Gemma 2, Phi 3.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from __future__ import annotations

from tilesmith.planning.architecture import Architecture, Layer, Operator
from tilesmith.planning.architectures.parts import (
    embedding,
    gated,
    grouped_attention,
    head,
    norm,
)
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.registry import families


@families.register("llama")
def llama(c: Configuration) -> Architecture:
    """Llama 1 to 3, and what else calls itself so."""
    return decoder(c, key_heads=c.integer("num_attention_heads"))


@families.register("mistral")
def mistral(c: Configuration) -> Architecture:
    """Mistral: a sliding window unless it is null."""
    window = c.integer("sliding_window", 4096) if c.fields.get("sliding_window", 4096) else 0
    return decoder(c, key_heads=8, window=window)


@families.register("qwen2")
def qwen2(c: Configuration) -> Architecture:
    """Qwen 2 and 2.5: biases of query, key and value."""
    return decoder(c, key_heads=32, bias=True)


@families.register("qwen3")
def qwen3(c: Configuration) -> Architecture:
    """Qwen 3: heads of 128 features, normalised queries and keys."""
    return decoder(c, key_heads=32, width=128, normalised=True)


@families.register("phi3")
def phi3(c: Configuration) -> Architecture:
    """Phi 3 and 4."""
    return decoder(c, key_heads=c.integer("num_attention_heads"))


@families.register("gemma")
def gemma(c: Configuration) -> Architecture:
    """Gemma: tied embeddings, wide heads."""
    return decoder(c, key_heads=16, width=256, tied=True)


@families.register("gemma2")
def gemma2(c: Configuration) -> Architecture:
    """Gemma 2: norms before and behind, every second layer sees a window."""
    return decoder(c, key_heads=4, width=256, tied=True, norms=4, window=0)


def decoder(
    c: Configuration,
    *,
    key_heads: int,
    width: int = 0,
    bias: bool = False,
    normalised: bool = False,
    tied: bool = False,
    norms: int = 2,
    window: int = 0,
) -> Architecture:
    """A dense decoder.

    Args:
        key_heads, width, bias, tied: what the family's configuration class has where a file is
            silent: heads of keys, features of a head (0: hidden_size over heads), biases of
            projections, tied embeddings.
        normalised: queries and keys are normalised, head by head.
        norms: normalisations of a layer.
        window: keys that are seen at most.
    """
    hidden = c.integer("hidden_size")
    attention = grouped_attention(
        c, key_heads=key_heads, width=width, bias=bias, normalised=normalised, window=window
    )
    operators: tuple[Operator, ...] = (
        *(norm(hidden, f"norm {n}") for n in range(norms)),
        *attention,
        *gated(hidden, c.integer("intermediate_size"), bias=c.flag("mlp_bias", False)),
    )
    return whole_decoder(c, (Layer("decoder", operators, c.integer("num_hidden_layers")),), tied)


def whole_decoder(c: Configuration, layers: tuple[Layer, ...], tied: bool = False) -> Architecture:
    """Layers between embedding and head.

    Args:
        tied: whether embeddings are tied where the file is silent.
    """
    hidden, vocabulary = c.integer("hidden_size"), c.integer("vocab_size")
    shared = c.flag("tie_word_embeddings", tied)
    first = Layer("embedding", (embedding(vocabulary, hidden),))
    last = Layer("head", (norm(hidden), head(hidden, vocabulary, tied=shared)), last=True)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="decoder",
        layers=(first, *layers, last),
        width=hidden,
        vocabulary=vocabulary,
        positions=c.integer("max_position_embeddings", 0, least=0),
    )
