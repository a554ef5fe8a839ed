"""What families of architectures share: attentions, feed-forwards, normalisations, embeddings,
heads."""

from dataclasses import dataclass
from typing import Literal

from tilesmith.capabilities.planning.architecture import (
    AttentionOperator,
    Experts,
    Lookup,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.search_space.support.errors import ModelError

Norm = Literal["rms", "layer", "none"]
"""What a normalisation keeps for each number: a factor, a factor and an offset, or nothing."""


@dataclass(frozen=True)
class Habits:
    """The values that a family's configuration class assumes where a file gives none.

    Attributes:
        key_heads: heads of keys; 0: as many as of queries.
        width: features of a head; 0: hidden_size over heads.
        bias: of projections to queries, keys and values.
        output_bias: of the projection behind attention; None: where `attention_bias` is asked for
            and not the family's habit.
        normalised: queries and keys are, head by head or all features together.
        norm: what normalisations keep.
        norms: normalisations of a layer.
        tied: whether the head's weights are the embedding's.
    """

    key_heads: int = 0
    width: int = 0
    bias: bool = False
    output_bias: bool | None = None
    normalised: Literal["", "heads", "all"] = ""
    norm: Norm = "rms"
    norms: int = 2
    tied: bool = False

    def layer_norms(self, hidden: int) -> tuple[Operator, ...]:
        """The normalisations of one layer."""
        return tuple(norm(hidden, f"norm {n}", keeps=self.norm) for n in range(self.norms))


_KEPT: dict[Norm, int] = {"rms": 1, "layer": 2, "none": 0}


def norm(width: int, name: str = "norm", *, keeps: Norm = "rms") -> PointwiseOperator:
    """A normalisation of a row: a square, a sum, a product a number."""
    return PointwiseOperator(name, width, parameters=width * _KEPT[keeps])


def embedding(entries: int, width: int, name: str = "embedding") -> Lookup:
    """A table of rows picked by token."""
    return Lookup(name, entries, width)


def head(width: int, vocabulary: int, *, tied: bool = False, bias: bool = False) -> ProductOperator:
    """The distribution over the vocabulary; tied, its weights are the embedding's."""
    return ProductOperator("head", width, vocabulary, "columns", bias=bias, tied=tied)


def gated(width: int, inner: int, *, bias: bool = False, name: str = "") -> tuple[Operator, ...]:
    """SiLU(x G) * (x U), then D: a gated feed-forward."""
    prefix = f"{name} " if name else ""
    return (
        ProductOperator(f"{prefix}gate, up", width, inner, "columns", times=2, bias=bias),
        PointwiseOperator(f"{prefix}silu", inner, operands=2, split=True),
        ProductOperator(f"{prefix}down", inner, width, "rows", bias=bias),
        PointwiseOperator(f"{prefix}residual", width, operands=2),
    )


def plain(width: int, inner: int, *, bias: bool = True) -> tuple[Operator, ...]:
    """gelu(x U) D: the feed-forward of GPT-2, BERT and ViT."""
    return (
        ProductOperator("up", width, inner, "columns", bias=bias),
        PointwiseOperator("gelu", inner, split=True),
        ProductOperator("down", inner, width, "rows", bias=bias),
        PointwiseOperator("residual", width, operands=2),
    )


def grouped_attention(c: Configuration, habits: Habits, window: int = 0) -> tuple[Operator, ...]:
    """Grouped queries with rotary positions: projections, rotation, attention, output.

    Args:
        window: keys a query sees at most (0: all).
    """
    hidden, heads = c.integer("hidden_size"), c.integer("num_attention_heads")
    groups = c.integer("num_key_value_heads", habits.key_heads or heads)
    if heads % groups:
        raise ModelError(
            f"'{c.source}': num_attention_heads = {heads} is not divisible by "
            f"num_key_value_heads = {groups}"
        )
    size = c.integer("head_dim", habits.width) if habits.width or "head_dim" in c else 0
    size = size or c.divided("hidden_size", "num_attention_heads")
    biased, out_biased = c.flag("attention_bias", habits.bias), habits.output_bias
    if out_biased is None:
        out_biased = biased and not habits.bias
    operators: list[Operator] = [
        ProductOperator("query", hidden, heads * size, "columns", unit=size, bias=biased),
        ProductOperator(
            "key, value",
            hidden,
            groups * size,
            "heads",
            unit=size,
            times=2,
            bias=biased,
            heads=heads,
        ),
    ]
    if habits.normalised:
        features = (heads + groups) * size
        held = 2 * size if habits.normalised == "heads" else features
        operators.append(PointwiseOperator("query, key norm", features, held, split=True))
    return (
        *operators,
        PointwiseOperator("rotary", (heads + groups) * size, operands=2, split=True),
        AttentionOperator("attention", heads, groups, size, size, window=window),
        ProductOperator("output", heads * size, hidden, "rows", unit=size, bias=out_biased),
        PointwiseOperator("residual", hidden, operands=2),
    )


def routed(
    width: int, inner: int, count: int, active: int, *, bias: bool = False, biased: bool = False
) -> tuple[Operator, ...]:
    """A router and gated experts, of which each row visits `active`.

    Args:
        bias: whether the router adds one to each expert's score.
        biased: whether experts' products do.
    """
    products = (
        ProductOperator("expert gate, up", width, inner, "columns", times=2, bias=biased),
        ProductOperator("expert down", inner, width, "rows", bias=biased),
    )
    return (
        ProductOperator("router", width, count, "none", bias=bias),
        Experts("experts", count, min(active, count), products),
        PointwiseOperator("expert silu", active * inner, operands=2, split=True),
        PointwiseOperator("expert sum", width, operands=active),
    )
