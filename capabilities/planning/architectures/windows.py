"""Which layers of a decoder see all of a sequence, and which a sliding window of it.

Fields are those of transformers: `sliding_window` (null: none), `use_sliding_window` and
`max_window_layers` (Qwen), and `layer_types`, which names each layer's kind and is the last word.
"""

from collections import Counter
from collections.abc import Callable

from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.search_space.support.errors import ModelError

_SLIDING, _FULL, _CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def every(c: Configuration, default: int) -> Callable[[int], bool]:
    """All layers have a window but each `sliding_window_pattern`-th."""
    pattern = c.integer("sliding_window_pattern", default)
    return lambda layer: (layer + 1) % pattern != 0


def chunks(c: Configuration) -> tuple[int, ...]:
    """Llama 4's: of each layer the keys it sees at most (0: all). Layers with rotary positions see
    the chunk they are in; it counts as a window of that length."""
    depth, size = c.integer("num_hidden_layers"), c.integer("attention_chunk_size", 8192)
    if "layer_types" in c:
        return tuple(size if kind == _CHUNKED else 0 for kind in c.texts("layer_types"))
    step = c.integer("no_rope_layer_interval", 4)
    rotated = c.listed("no_rope_layers") or [int((n + 1) % step != 0) for n in range(depth)]
    return tuple(size if rotates else 0 for rotates in rotated)


def windows(
    c: Configuration, default: int = 0, slides: Callable[[int], bool] = lambda layer: True
) -> dict[int, int]:
    """How many layers see how many keys at most (0: all), in the order in which they first stand.

    Args:
        default: the family's window where the field is absent.
        slides: the family's layers with a window where `layer_types` is silent.

    Raises:
        ModelError: fields that are none of these, or of another number of layers.
    """
    depth = c.integer("num_hidden_layers")
    null = "sliding_window" in c.fields and c.fields["sliding_window"] is None
    window = 0 if null else c.integer("sliding_window", default, least=0)
    kinds = tuple(_SLIDING if slides(n) else _FULL for n in range(depth))
    if "layer_types" in c:
        kinds = c.texts("layer_types")
        if len(kinds) != depth or set(kinds) - {_SLIDING, _FULL}:
            raise ModelError(
                f"'{c.source}': layer_types has {len(kinds)} entries, {', '.join(set(kinds))}; "
                f"{depth} of {_SLIDING} and {_FULL} are expected"
            )
    return dict(Counter(window if kind == _SLIDING else 0 for kind in kinds))


def qwen_windows(c: Configuration) -> dict[int, int]:
    """Qwen's: none unless `use_sliding_window`, and then from `max_window_layers` on."""
    if not c.flag("use_sliding_window", False):
        return {0: c.integer("num_hidden_layers")}
    first = c.integer("max_window_layers", 28, least=0)
    return windows(c, 4096, lambda layer: layer >= first)
