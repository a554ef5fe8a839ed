"""Dense decoders with RMS normalisation before, gated feed-forwards and grouped queries: Llama,
Mistral, Qwen 2, 2.5 and 3, Gemma and Gemma 2, Phi 3.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.planning.architecture import Architecture, Layer, Operator
from tilesmith.planning.architectures.parts import (
    embedding,
    gated,
    grouped_attention,
    head,
    norm,
)
from tilesmith.planning.architectures.windows import qwen_windows, windows
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.registry import families


@families.register("llama")
def llama(c: Configuration) -> Architecture:
    """Llama 1 to 3, and what else calls itself so."""
    return decoder(c, key_heads=c.integer("num_attention_heads"))


@families.register("mistral")
def mistral(c: Configuration) -> Architecture:
    """Mistral: a sliding window unless it is null."""
    return decoder(c, key_heads=8, seen=windows(c, 4096))


@families.register("qwen2")
def qwen2(c: Configuration) -> Architecture:
    """Qwen 2 and 2.5: biases of query, key and value."""
    return decoder(c, key_heads=32, bias=True, seen=qwen_windows(c))


@families.register("qwen3")
def qwen3(c: Configuration) -> Architecture:
    """Qwen 3: heads of 128 features, normalised queries and keys."""
    seen = qwen_windows(c)
    return decoder(c, key_heads=32, width=128, normalised=True, seen=seen)


@families.register("phi3")
def phi3(c: Configuration) -> Architecture:
    """Phi 3 and 4: a sliding window if there is one."""
    return decoder(c, key_heads=c.integer("num_attention_heads"), seen=windows(c))


@families.register("gemma")
def gemma(c: Configuration) -> Architecture:
    """Gemma: tied embeddings, wide heads."""
    return decoder(c, key_heads=16, width=256, tied=True)


@families.register("gemma2")
def gemma2(c: Configuration) -> Architecture:
    """Gemma 2: norms before and behind, every second layer, from the first on, sees a window."""
    seen = windows(c, 4096, lambda layer: layer % 2 == 0)
    return decoder(c, key_heads=4, width=256, tied=True, norms=4, seen=seen)


def decoder(
    c: Configuration,
    *,
    key_heads: int,
    width: int = 0,
    bias: bool = False,
    normalised: bool = False,
    tied: bool = False,
    norms: int = 2,
    seen: Mapping[int, int] | None = None,
) -> Architecture:
    """A dense decoder.

    Args:
        key_heads, width, bias, tied: what the family's configuration class has where a file is
            silent: heads of keys, features of a head (0: hidden_size over heads), biases of
            projections, tied embeddings.
        normalised: queries and keys are normalised, head by head.
        norms: normalisations of a layer.
        seen: how many layers see how many keys at most (`windows`); without, all see all.
    """
    hidden = c.integer("hidden_size")
    layers = []
    for window, count in (seen or {0: c.integer("num_hidden_layers")}).items():
        attention = grouped_attention(
            c, key_heads=key_heads, width=width, bias=bias, normalised=normalised, window=window
        )
        operators: tuple[Operator, ...] = (
            *(norm(hidden, f"norm {n}") for n in range(norms)),
            *attention,
            *gated(hidden, c.integer("intermediate_size"), bias=c.flag("mlp_bias", False)),
        )
        layers.append(Layer(f"decoder{' with a window' * (window > 0)}", operators, count))
    return whole_decoder(c, tuple(layers), tied)


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
