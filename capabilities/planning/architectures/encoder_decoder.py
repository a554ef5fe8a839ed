"""Encoders with a decoder behind them: T5 and Whisper.

The encoder runs once, with the prompt, as do the projections to the keys and values that the
decoder attends across to. T5's prompt is what its encoder reads, and its decoder begins with one
token; Whisper's encoder reads 30 seconds of sound, and its decoder the prompt.

Source: modeling_t5.py and modeling_whisper.py of transformers.
"""

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.architectures.parts import embedding, gated, head, norm, plain
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("t5")
def t5(c: Configuration) -> Architecture:
    """T5, its versions 1.0 and 1.1, and Flan-T5.

    A layer of its decoder attends to what was written and, across, to what was read: together as
    many keys as prompt and answer have tokens, which are costed as one attention.
    """
    width, size, inner = c.integer("d_model"), c.integer("d_kv", 64), c.integer("d_ff")
    heads, depth = c.integer("num_heads"), c.integer("num_layers")
    vocabulary = c.integer("vocab_size")
    split = str(c.fields.get("feed_forward_proj", "relu")).startswith("gated")
    feed = gated(width, inner) if split else plain(width, inner, bias=False)

    def attends(name: str, *, queries: int, keys: int, causal: bool) -> tuple[Operator, ...]:
        """Each projection is repeated `times` times; the attention is there once."""
        return (
            ProductOperator(f"{name} query", width, heads * size, unit=size, times=queries),
            ProductOperator(
                f"{name} key, value", width, heads * size, "heads", unit=size, times=keys
            ),
            AttentionOperator(name, heads, heads, size, size, causal=causal),
            ProductOperator(
                f"{name} output", heads * size, width, "rows", unit=size, times=queries
            ),
            PointwiseOperator("residual", width, operands=2),
        )

    across = ProductOperator("across key, value", width, heads * size, "heads", unit=size, times=2)
    both = attends("attention", queries=2, keys=2, causal=True)
    sizes = (norm(width, "norm 0"), norm(width, "norm 1"))
    distances = PointwiseOperator(
        "distances", heads, c.integer("relative_attention_num_buckets", 32) * heads
    )
    tied = c.flag("tie_word_embeddings", True)
    written = c.integer("num_decoder_layers", depth)
    alone = attends("attention", queries=1, keys=2, causal=False)
    layers = (
        Layer("embedding", (embedding(vocabulary, width), distances), once=True),
        Layer("encoder", (*sizes, *alone, *feed), depth, once=True),
        Layer("encoder norm", (norm(width),), once=True),
        Layer("keys across", (across,), written, once=True),
        Layer("decoder", (*sizes, norm(width, "norm 2"), *both, *feed), written, last=True),
        Layer("head", (norm(width), distances, head(width, vocabulary, tied=tied)), last=True),
    )
    return Architecture(_name(c), c.family, "decoder", layers, width, vocabulary)


@families.register("whisper")
def whisper(c: Configuration) -> Architecture:
    """Whisper: two convolutions over the spectrum, which halve it, an encoder, a decoder."""
    width, vocabulary = c.integer("d_model"), c.integer("vocab_size", 51865)
    frames, longest = (
        c.integer("max_source_positions", 1500),
        c.integer("max_target_positions", 448),
    )
    inner = c.integer("encoder_ffn_dim"), c.integer("decoder_ffn_dim")
    heads = c.integer("encoder_attention_heads"), c.integer("decoder_attention_heads")
    depth = c.integer("encoder_layers"), c.integer("decoder_layers")

    def attends(
        name: str, number: int, *, keys: int = 0, causal: bool = False
    ) -> tuple[Operator, ...]:
        """Keys have no bias; those across (`keys`) are another layer's."""
        unit = width // number
        own = () if keys else _keys(width, unit, name)
        return (
            norm(width, f"norm {name}", keeps="layer"),
            ProductOperator(f"{name} query", width, width, unit=unit, bias=True),
            *own,
            AttentionOperator(name, number, number, unit, unit, causal=causal, keys=keys),
            ProductOperator(f"{name} output", width, width, "rows", unit=unit, bias=True),
            PointwiseOperator("residual", width, operands=2),
        )

    sound = (
        ProductOperator(
            "convolution 0", 3 * c.integer("num_mel_bins", 80), width, bias=True, rows=2 * frames
        ),
        ProductOperator("convolution 1", 3 * width, width, bias=True),
        PointwiseOperator("positions", width, frames * width, operands=2),
    )
    last = norm(width, "norm", keeps="layer")
    feeds = [(norm(width, "norm feed", keeps="layer"), *plain(width, n)) for n in inner]
    across = attends("across", heads[1], keys=frames)
    tables = (embedding(vocabulary, width), embedding(longest, width, "positions"))
    layers = (
        Layer("sound", sound, rows=frames, once=True),
        Layer("encoder", (*attends("attention", heads[0]), *feeds[0]), depth[0], frames, once=True),
        Layer("encoder norm", (last,), rows=frames, once=True),
        Layer(
            "keys across", _keys(width, width // heads[1], "across"), depth[1], frames, once=True
        ),
        Layer("embedding", tables),
        Layer(
            "decoder", (*attends("attention", heads[1], causal=True), *across, *feeds[1]), depth[1]
        ),
        Layer("head", (last, head(width, vocabulary, tied=True)), last=True),
    )
    return Architecture(_name(c), c.family, "decoder", layers, width, vocabulary, longest)


def _keys(width: int, unit: int, name: str) -> tuple[Operator, ...]:
    """Projections to keys, without a bias, and values, with one."""
    return (
        ProductOperator(f"{name} key", width, width, "heads", unit=unit),
        ProductOperator(f"{name} value", width, width, "heads", unit=unit, bias=True),
    )


def _name(c: Configuration) -> str:
    return str(c.fields.get("_name_or_path") or c.family)
