"""What one core of a tensor group holds and does of a layer's operators.

Cores share products as Megatron does (Shoeybi et al., 2019): outputs of the first, inputs of the
second, a sum over the group behind it. What does not divide is padded: heads whole (40 heads over
32 cores are 2 a core). Heads of keys that do not divide are copied: one to each core where cores
are a multiple of them and the engine can (NxD Inference, modules/attention/gqa.py:
`REPLICATE_TO_TP_DEGREE`), else until there is one for each head of queries (`CONVERT_TO_MHA`; in
transformers-neuronx, decoder.py, `check_gqa_fallback`, always: 64 heads over 32 cores are 2 heads
of keys a core, however few there were).
"""

from tilesmith.capabilities.planning.architecture import (
    AttentionOperator,
    PointwiseOperator,
    ProductOperator,
)


def product_share(product: ProductOperator, tensor: int, full_heads: bool = False) -> int:
    """Numbers of a product's weights that one core of `tensor` multiplies by.

    Args:
        full_heads: whether the engine copies heads of keys to as many as of queries.
    """
    match product.split:
        case "columns":
            k, n = product.k, part(product.n, product.unit, tensor)
        case "heads":
            groups = product.n // product.unit
            held = _key_heads(product.heads or groups, groups, tensor, full_heads)
            k, n = product.k, held * product.unit
        case "rows":
            k, n = part(product.k, product.unit, tensor), product.n
        case "none":
            k, n = product.k, product.n
    return product.times * k * n


def is_narrow(product: ProductOperator) -> bool:
    """Whether a product's weights have the narrow precision; heads and routers have not."""
    return product.split != "none" and product.name != "head"


def part(features: int, unit: int, tensor: int) -> int:
    """The number of features on one core, where units of them stay together."""
    return -(-features // (unit * tensor)) * unit


def heads_share(attention: AttentionOperator, tensor: int) -> int:
    """Heads of queries on one core."""
    return -(-attention.heads // tensor)


def cached_share(attention: AttentionOperator, tensor: int, full_heads: bool = False) -> int:
    """Numbers that one core's cache keeps of a token, for one layer; a latent is on all of them."""
    if attention.latent:
        return attention.latent
    held = _key_heads(attention.heads, attention.key_heads, tensor, full_heads)
    return held * (attention.width + attention.value_width)


def _key_heads(heads: int, key_heads: int, tensor: int, full: bool) -> int:
    """Heads of keys on one core; see the module's docstring."""
    if key_heads % tensor == 0:
        return key_heads // tensor
    if tensor % key_heads == 0 and not full:
        return 1
    return -(-heads // tensor)


def width_share(operator: PointwiseOperator, tensor: int) -> int:
    """Numbers of a row on one core."""
    return -(-operator.width // tensor) if operator.split else operator.width


def kept(attention: AttentionOperator, length: int) -> int:
    """The number of tokens of a sequence whose keys are read."""
    return min(length, attention.window) if attention.window else length


def seen_pairs(attention: AttentionOperator, rows: int, length: int) -> int:
    """Pairs of query and key that matter: of the last `rows` of `length` tokens, each with itself
    and those before, as far as its window goes."""
    if not attention.causal:
        return rows * length
    window = kept(attention, length)
    filling = max(0, min(rows, window - (length - rows)))  # those whose window is not full yet
    first = length - rows + 1
    return filling * (2 * first + filling - 1) // 2 + (rows - filling) * window
