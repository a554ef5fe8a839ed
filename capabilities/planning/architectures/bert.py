"""Encoders of text: BERT, RoBERTa, DistilBERT. One pass over a whole sequence.

Source: modeling_*.py of transformers. The pooler is counted, heads of tasks are not.
"""

from dataclasses import replace

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.architectures.parts import embedding, norm, plain
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("bert")
def bert(c: Configuration) -> Architecture:
    """BERT, base and large."""
    types = c.integer("type_vocab_size", 2)
    return _encoder(c, types, c.integer("max_position_embeddings", 512))


@families.register("roberta")
@families.register("xlm-roberta")
@families.register("camembert")
def roberta(c: Configuration) -> Architecture:
    """RoBERTa and its like: BERT, mostly with one token type."""
    types = c.integer("type_vocab_size", 2)
    return _encoder(c, types, c.integer("max_position_embeddings", 512))


@families.register("electra")
def electra(c: Configuration) -> Architecture:
    """ELECTRA: embeddings may be narrower than layers, and nothing is pooled."""
    narrow, width = c.integer("embedding_size", 128), c.integer("hidden_size")
    types, positions = c.integer("type_vocab_size", 2), c.integer("max_position_embeddings", 512)
    tables: tuple[Operator, ...] = (
        embedding(c.integer("vocab_size"), narrow),
        embedding(positions, narrow, "positions"),
        embedding(types, narrow, "types"),
        norm(narrow, keeps="layer"),
        *([ProductOperator("widening", narrow, width, bias=True)] if narrow != width else []),
    )
    whole = _encoder(c, types, positions, pooled=False)
    return replace(whole, layers=(Layer("embedding", tables), *whole.layers[1:]))


@families.register("distilbert")
def distilbert(c: Configuration) -> Architecture:
    """DistilBERT: half of BERT's layers, neither token types nor a pooler."""
    names = {
        "hidden_size": c.integer("dim"),
        "num_hidden_layers": c.integer("n_layers"),
        "num_attention_heads": c.integer("n_heads"),
        "intermediate_size": c.integer("hidden_dim"),
    }
    renamed = Configuration(c.source, c.family, {**c.fields, **names})
    return _encoder(renamed, 0, c.integer("max_position_embeddings", 512), pooled=False)


@families.register("clip_text_model")
def clip_text(c: Configuration) -> Architecture:
    """CLIP's text encoder, as Stable Diffusion has it: causal, as long as it has positions."""
    width, positions = c.integer("hidden_size"), c.integer("max_position_embeddings", 77)
    tables = (
        embedding(c.integer("vocab_size", 49408), width),
        embedding(positions, width, "positions"),
    )
    layer = encoder_layer(c, width, causal=True)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=(
            Layer("embedding", tables, rows=positions),
            Layer("encoder", layer, c.integer("num_hidden_layers"), rows=positions),
            Layer("norm", (norm(width, keeps="layer"),), rows=positions),
        ),
        width=width,
        positions=positions,
    )


def _encoder(c: Configuration, types: int, positions: int, *, pooled: bool = True) -> Architecture:
    width = c.integer("hidden_size")
    layer = Layer("encoder", encoder_layer(c, width), c.integer("num_hidden_layers"))
    tables: tuple[Operator, ...] = (
        embedding(c.integer("vocab_size"), width),
        embedding(positions, width, "positions"),
        *([embedding(types, width, "types")] if types else []),
        norm(width, keeps="layer"),
    )
    layers = [Layer("embedding", tables), layer]
    if pooled:
        layers.append(
            Layer("pooler", (ProductOperator("pooler", width, width, bias=True),), last=True)
        )
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=tuple(layers),
        width=width,
        positions=positions,
    )


def encoder_layer(
    c: Configuration, width: int, *, bias: bool = True, causal: bool = False
) -> tuple[Operator, ...]:
    """Attention of all to all and a plain feed-forward, a normalisation with each.

    Args:
        bias: whether query, key and value have biases.
    """
    heads, inner = c.integer("num_attention_heads"), c.integer("intermediate_size")
    size = c.divided("hidden_size", "num_attention_heads")
    return (
        norm(width, "norm 0", keeps="layer"),
        norm(width, "norm 1", keeps="layer"),
        ProductOperator(
            "query, key, value", width, width, "columns", unit=size, times=3, bias=bias
        ),
        AttentionOperator("attention", heads, heads, size, size, causal=causal),
        ProductOperator("output", width, width, "rows", unit=size, bias=True),
        PointwiseOperator("residual", width, operands=2),
        *plain(width, inner),
    )
