"""Dense decoders with RMS normalisation before, gated feed-forwards and grouped queries: Llama,
Mistral, Qwen 2, 2.5 and 3, Phi 3; and what other decoders of that build share (`dense.py`).

Source: modeling_*.py and configuration_*.py of transformers.
"""

from collections.abc import Mapping

from tilesmith.capabilities.planning.architecture import Architecture, Layer, Operator
from tilesmith.capabilities.planning.architectures.parts import (
    Habits,
    embedding,
    gated,
    grouped_attention,
    head,
    norm,
)
from tilesmith.capabilities.planning.architectures.windows import qwen_windows, windows
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("llama")
def llama(c: Configuration) -> Architecture:
    """Llama 1 to 3, and other models whose `model_type` is "llama"."""
    return decoder(c, Habits())


@families.register("mistral")
def mistral(c: Configuration) -> Architecture:
    """Mistral: a sliding window unless it is null."""
    return decoder(c, Habits(key_heads=8), windows(c, 4096))


@families.register("qwen2")
def qwen2(c: Configuration) -> Architecture:
    """Qwen 2 and 2.5: biases of query, key and value."""
    return decoder(c, Habits(key_heads=32, bias=True), qwen_windows(c))


@families.register("qwen2_vl")
@families.register("qwen2_5_vl")
def qwen2_vl(c: Configuration) -> Architecture:
    """The language model of Qwen 2 and 2.5 VL, whose older files have its fields side by side."""
    return qwen2(c)


@families.register("qwen3")
@families.register("qwen3_vl_text")
def qwen3(c: Configuration) -> Architecture:
    """Qwen 3: heads of 128 features, normalised queries and keys."""
    return decoder(c, Habits(key_heads=32, width=128, normalised="heads"), qwen_windows(c))


@families.register("phi3")
def phi3(c: Configuration) -> Architecture:
    """Phi 3 and 4: a sliding window if there is one."""
    return decoder(c, Habits(), windows(c))


_PLAIN = Habits()


def decoder(
    c: Configuration,
    habits: Habits,
    seen: Mapping[int, int] | None = None,
    feed: tuple[Operator, ...] = (),
) -> Architecture:
    """A dense decoder.

    Args:
        seen: how many layers see how many keys at most (`windows`); without, all see all.
        feed: its feed-forward; without, a gated one.
    """
    hidden = c.integer("hidden_size")
    feed = feed or gated(hidden, c.integer("intermediate_size"), bias=c.flag("mlp_bias", False))
    layers = [
        Layer(
            f"decoder{' with a window' * (window > 0)}",
            (*habits.layer_norms(hidden), *grouped_attention(c, habits, window), *feed),
            count,
        )
        for window, count in (seen or {0: c.integer("num_hidden_layers")}).items()
    ]
    return whole_decoder(c, tuple(layers), habits)


def whole_decoder(
    c: Configuration, layers: tuple[Layer, ...], habits: Habits = _PLAIN
) -> Architecture:
    """Layers between embedding and head."""
    hidden, vocabulary = c.integer("hidden_size"), c.integer("vocab_size")
    shared = c.flag("tie_word_embeddings", habits.tied)
    first = Layer("embedding", (embedding(vocabulary, hidden),))
    scores = head(hidden, vocabulary, tied=shared, bias=c.flag("lm_head_bias", False))
    last = Layer("head", (norm(hidden, keeps=habits.norm), scores), last=True)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="decoder",
        layers=(first, *layers, last),
        width=hidden,
        vocabulary=vocabulary,
        positions=c.integer("max_position_embeddings", 0, least=0),
    )
