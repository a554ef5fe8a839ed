"""What one core of a tensor group holds and does of a layer's operators.

Cores share products as Megatron does (Shoeybi et al., 2019): outputs of the first, inputs of the
second, a sum over the group behind it. What does not divide is padded: heads whole (40 heads over
32 cores are 2 a core), heads of keys copied where there are fewer than cores.
"""

from __future__ import annotations

from tilesmith.planning.architecture import Attention, Pointwise, Product


def product_share(product: Product, tensor: int) -> int:
    """Numbers of a product's weights that one core of `tensor` multiplies by."""
    match product.split:
        case "columns" | "heads":
            k, n = product.k, part(product.n, product.unit, tensor)
        case "rows":
            k, n = part(product.k, product.unit, tensor), product.n
        case "none":
            k, n = product.k, product.n
    return product.times * k * n


def is_narrow(product: Product) -> bool:
    """Whether weights are kept as narrow as was asked for: not those of heads and routers."""
    return product.split != "none" and product.name != "head"


def part(features: int, unit: int, tensor: int) -> int:
    """One core's features of so many that stay together in units."""
    return -(-features // (unit * tensor)) * unit


def heads_share(attention: Attention, tensor: int) -> int:
    """Heads of queries on one core."""
    return -(-attention.heads // tensor)


def cached_share(attention: Attention, tensor: int) -> int:
    """Numbers that one core's cache keeps of a token, for one layer; a latent is on all of them."""
    if attention.latent:
        return attention.latent
    groups = -(-attention.key_heads // tensor)
    return groups * (attention.width + attention.value_width)


def width_share(operator: Pointwise, tensor: int) -> int:
    """Numbers of a row on one core."""
    return -(-operator.width // tensor) if operator.split else operator.width


def kept(attention: Attention, length: int) -> int:
    """Tokens of a sequence whose keys matter."""
    return min(length, attention.window) if attention.window else length


def seen_pairs(attention: Attention, rows: int, length: int) -> int:
    """Pairs of query and key that matter: of the last `rows` of `length` tokens, each with itself
    and those before, as far as its window goes."""
    if not attention.causal:
        return rows * length
    window = kept(attention, length)
    filling = max(0, min(rows, window - (length - rows)))  # those whose window is not full yet
    first = length - rows + 1
    return filling * (2 * first + filling - 1) // 2 + (rows - filling) * window
