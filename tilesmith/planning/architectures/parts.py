"""What families of architectures share: attentions, feed-forwards, normalisations, embeddings,
heads."""

from __future__ import annotations

from tilesmith.planning.architecture import (
    Attention,
    Experts,
    Lookup,
    Operator,
    Pointwise,
    Product,
)
from tilesmith.planning.configuration import Configuration


def norm(width: int, name: str = "norm", *, bias: bool = False) -> Pointwise:
    """RMS normalisation, or with `bias` layer normalisation: a square, a sum, a product a
    number."""
    return Pointwise(name, width, parameters=width * (2 if bias else 1), operations=4)


def embedding(entries: int, width: int, name: str = "embedding") -> Lookup:
    """A table of rows picked by token."""
    return Lookup(name, entries, width)


def head(width: int, vocabulary: int, *, tied: bool = False, bias: bool = False) -> Product:
    """The distribution over the vocabulary; tied, its weights are the embedding's."""
    return Product("head", width, vocabulary, "columns", bias=bias, tied=tied)


def gated(width: int, inner: int, *, bias: bool = False, name: str = "") -> tuple[Operator, ...]:
    """SiLU(x G) * (x U), then D: a gated feed-forward."""
    prefix = f"{name} " if name else ""
    return (
        Product(f"{prefix}gate, up", width, inner, "columns", times=2, bias=bias),
        Pointwise(f"{prefix}silu", inner, operations=2, split=True),
        Product(f"{prefix}down", inner, width, "rows", bias=bias),
        Pointwise(f"{prefix}residual", width),
    )


def plain(width: int, inner: int, *, bias: bool = True) -> tuple[Operator, ...]:
    """gelu(x U) D: the feed-forward of GPT-2, BERT and ViT."""
    return (
        Product("up", width, inner, "columns", bias=bias),
        Pointwise("gelu", inner, split=True),
        Product("down", inner, width, "rows", bias=bias),
        Pointwise("residual", width),
    )


def grouped_attention(
    c: Configuration,
    *,
    key_heads: int,
    width: int = 0,
    bias: bool = False,
    normalised: bool = False,
    window: int = 0,
) -> tuple[Operator, ...]:
    """Grouped queries with rotary positions: projections, rotation, attention, output.

    Args: see `llama.decoder`.
    """
    hidden, heads = c.integer("hidden_size"), c.integer("num_attention_heads")
    groups = c.integer("num_key_value_heads", key_heads)
    size = c.integer("head_dim", width) if width or "head_dim" in c else 0
    size = size or c.divided("hidden_size", "num_attention_heads")
    biased = c.flag("attention_bias", bias)
    out_biased = biased and not bias  # where biases are the family's habit, the output has none
    operators: list[Operator] = [
        Product("query", hidden, heads * size, "columns", unit=size, bias=biased),
        Product("key, value", hidden, groups * size, "heads", unit=size, times=2, bias=biased),
    ]
    if normalised:
        operators.append(Pointwise("query, key norm", (heads + groups) * size, 2 * size, 4, True))
    return (
        *operators,
        Pointwise("rotary", (heads + groups) * size, operations=3, split=True),
        Attention("attention", heads, groups, size, size, window=window),
        Product("output", heads * size, hidden, "rows", unit=size, bias=out_biased),
        Pointwise("residual", hidden),
    )


def routed(
    width: int, inner: int, count: int, active: int, *, bias: bool = False
) -> tuple[Operator, ...]:
    """A router and gated experts, of which each row visits `active`."""
    products = (
        Product("expert gate, up", width, inner, "columns", times=2),
        Product("expert down", inner, width, "rows"),
    )
    return (
        Product("router", width, count, "none", bias=bias),
        Experts("experts", count, min(active, count), products),
        Pointwise("expert silu", active * inner, operations=2, split=True),
        Pointwise("expert sum", width, operations=active),
    )
