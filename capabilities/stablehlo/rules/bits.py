"""Bits of whole numbers: shifts, counts."""

from __future__ import annotations

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.rules.elementwise import bit_cast, choose, formula
from tilesmith.search_space.expressions.dtypes import size_of


def _unsigned(b: GraphBuilder, x: TensorValue) -> TensorValue:
    return bit_cast(b, x, x.dtype if x.dtype.startswith("u") else f"u{x.dtype}")


def _shifted(
    b: GraphBuilder, x: TensorValue, by: TensorValue, direction: str, filled: int = 0
) -> TensorValue:
    """Bits of unsigned x moved; all gone where `by` is at least their number."""
    bits = 8 * size_of(x.dtype)
    amount = _unsigned(b, by)
    inside = b.elementwise("Less", amount, b.like(bits, amount), dtype="bool")
    safe = choose(b, inside, amount, b.like(0, amount))
    moved = b.elementwise("BitShift", x, safe, direction=direction)
    return choose(b, inside, moved, b.like(filled, x))


@formula("stablehlo.shift_left")
def shift_left(b: GraphBuilder, x: TensorValue, by: TensorValue) -> TensorValue:
    return bit_cast(b, _shifted(b, _unsigned(b, x), by, "LEFT"), x.dtype)


@formula("stablehlo.shift_right_logical")
def shift_right_logical(b: GraphBuilder, x: TensorValue, by: TensorValue) -> TensorValue:
    return bit_cast(b, _shifted(b, _unsigned(b, x), by, "RIGHT"), x.dtype)


@formula("stablehlo.shift_right_arithmetic")
def shift_right_arithmetic(b: GraphBuilder, x: TensorValue, by: TensorValue) -> TensorValue:
    """Copies of the highest bit move in: a negative number's complement is shifted."""
    dtype = x.dtype
    x = bit_cast(b, x, dtype.removeprefix("u"))
    below = b.elementwise("Less", x, b.like(0, x), dtype="bool")
    flipped = choose(b, below, b.elementwise("BitwiseNot", x), x)
    moved = bit_cast(b, _shifted(b, _unsigned(b, flipped), by, "RIGHT"), x.dtype)
    return bit_cast(b, choose(b, below, b.elementwise("BitwiseNot", moved), moved), dtype)


@formula("stablehlo.popcnt")
def count_ones(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """Ones among the bits: in pairs, in fours, in bytes, and the bytes summed by a product."""
    bits = 8 * size_of(x.dtype)
    v = _unsigned(b, x)

    def right(value: TensorValue, by: int) -> TensorValue:
        return b.elementwise("BitShift", value, b.like(by, value), direction="RIGHT")

    def masked(value: TensorValue, byte: int) -> TensorValue:
        pattern = int.from_bytes(bytes([byte]) * (bits // 8), "little")
        return b.elementwise("BitwiseAnd", value, b.like(pattern, value))

    v = b.elementwise("Sub", v, masked(right(v, 1), 0x55))
    v = b.elementwise("Add", masked(v, 0x33), masked(right(v, 2), 0x33))
    v = masked(b.elementwise("Add", v, right(v, 4)), 0x0F)
    for step in (8, 16, 32):
        if step < bits:
            v = b.elementwise("Add", v, right(v, step))
    return bit_cast(b, b.elementwise("BitwiseAnd", v, b.like(bits * 2 - 1, v)), x.dtype)


@formula("stablehlo.count_leading_zeros")
def count_leading_zeros(b: GraphBuilder, x: TensorValue) -> TensorValue:
    """Ones are spread to the right of the first; what is left has none."""
    v, step = _unsigned(b, x), 1
    while step < 8 * size_of(x.dtype):
        right = b.elementwise("BitShift", v, b.like(step, v), direction="RIGHT")
        v, step = b.elementwise("BitwiseOr", v, right), 2 * step
    return bit_cast(b, count_ones(b, b.elementwise("BitwiseNot", v)), x.dtype)
