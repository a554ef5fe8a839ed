"""Decoders with plain feed-forwards: GPT-2, StarCoder, GPT-J, GPT-Neo, GPT-NeoX, OPT, BLOOM, MPT,
Falcon, Phi.

Source: modeling_*.py and configuration_*.py of transformers.
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
from tilesmith.capabilities.planning.architectures.parts import embedding, head, norm, plain
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families
from tilesmith.search_space.support.errors import ModelError


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
    local = _kinds(c, depth).count("local")
    layer = _layer(width, size, inner, biases=1)
    window = c.integer("window_size", 256)
    seen = tuple(
        replace(op, window=window) if isinstance(op, AttentionOperator) else op for op in layer
    )
    layers = (
        Layer("decoder", layer, depth - local),
        *([Layer("decoder with a window", seen, local)] if local else []),
    )
    whole = _whole(c, width, layers[0], c.integer("max_position_embeddings", 2048), tied=True)
    return replace(whole, layers=(whole.layers[0], *layers, whole.layers[-1]))


def _kinds(c: Configuration, depth: int) -> list[str]:
    """What each layer of GPT-Neo attends to: names in turns, so many times, group after group."""
    groups = c.fields.get("attention_types") or [[["global", "local"], depth // 2]]
    kinds: list[str] = []
    try:
        for names, times in groups:
            kinds += list(names) * min(times, depth + 1)
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != depth or set(kinds) - {"global", "local"}:
        raise ModelError(
            f"'{c.source}': attention_types does not say of {depth} layers which are global and "
            'which local; [[["global", "local"], 12]] would, of 24'
        )
    return kinds


@families.register("gpt_bigcode")
def gpt_bigcode(c: Configuration) -> Architecture:
    """StarCoder and SantaCoder: GPT-2 with one head of keys for all."""
    width, inner = c.integer("n_embd"), c.integer("n_inner", 0, least=0)
    size = c.divided("n_embd", "n_head")
    groups = 1 if c.flag("multi_query", True) else width // size
    layer = _layer(width, size, inner or 4 * width, groups=groups)
    positions = c.integer("n_positions", 1024)
    return _whole(c, width, Layer("decoder", layer, c.integer("n_layer")), positions, tied=True)


@families.register("mpt")
def mpt(c: Configuration) -> Architecture:
    """MPT: positions by distance, no biases, normalisations without offsets."""
    width, size = c.integer("d_model"), c.divided("d_model", "n_heads")
    inner = c.integer("expansion_ratio", 4) * width
    layer = _layer(width, size, inner, biases=0, norms=0)
    norms = tuple(norm(width, f"norm {n}") for n in range(2))
    feed = plain(width, inner, bias=False)
    layer = (*norms, *layer[: -len(feed)], *feed)
    whole = _whole(c, width, Layer("decoder", layer, c.integer("n_layers")), 0, tied=True)
    first, *body, last = whole.layers
    last = replace(last, operators=(norm(width), *last.operators[1:]))
    return replace(whole, layers=(first, *body, last))


@families.register("bloom")
def bloom(c: Configuration) -> Architecture:
    """BLOOM: positions by distance, normalised embeddings."""
    width = c.integer("n_embed" if "n_embed" in c else "hidden_size")  # as published, or as saved
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
        ProductOperator("query", width, heads * size, "columns", unit=size, bias=bias),
        ProductOperator(
            "key, value", width, groups * size, "heads", unit=size, times=2, bias=bias, heads=heads
        ),
        AttentionOperator("attention", heads, groups, size, size),
        ProductOperator("output", heads * size, width, "rows", unit=size, bias=bias),
        PointwiseOperator("residual", width, operands=2),
        *plain(width, c.integer("ffn_hidden_size", 4 * width), bias=bias),
    )
    return _whole(c, width, Layer("decoder", layer, c.integer("num_hidden_layers")), 0, tied=True)


def _layer(
    width: int, size: int, inner: int, norms: int = 2, biases: int = 4, groups: int = 0
) -> tuple[Operator, ...]:
    """
    Args:
        biases: of attention's four projections, counted from its output.
        groups: heads of keys; 0: as many as of queries.
    """
    heads, bias = width // size, biases > 1
    projections: tuple[Operator, ...] = (
        ProductOperator(
            "query, key, value", width, width, "columns", unit=size, times=3, bias=bias
        ),
    )
    if groups not in (0, heads):
        projections = (
            ProductOperator("query", width, width, "columns", unit=size, bias=bias),
            ProductOperator(
                "key, value",
                width,
                groups * size,
                "heads",
                unit=size,
                times=2,
                bias=bias,
                heads=heads,
            ),
        )
    return (
        *(norm(width, f"norm {n}", keeps="layer") for n in range(norms)),
        *projections,
        AttentionOperator("attention", heads, groups or heads, size, size),
        ProductOperator("output", width, width, "rows", unit=size, bias=biases > 0),
        PointwiseOperator("residual", width, operands=2),
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
