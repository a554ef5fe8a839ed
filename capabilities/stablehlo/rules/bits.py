"""Bits of whole numbers: shifts, counts."""

from tilesmith.capabilities.stablehlo.arithmetic import RealValue, formula, where
from tilesmith.search_space.expressions.dtypes import size_of


def _unsigned(x: RealValue) -> RealValue:
    return x.bits_as(x.dtype if x.dtype.startswith("u") else f"u{x.dtype}")


def _right(x: RealValue, by: int) -> RealValue:
    return x.apply("BitShift", x.like(by), direction="RIGHT")


def _shifted(x: RealValue, by: RealValue, direction: str) -> RealValue:
    """Bits of x moved; all gone where `by` is at least their number."""
    v, amount = _unsigned(x), _unsigned(by)
    inside = amount < 8 * size_of(x.dtype)
    moved = v.apply("BitShift", where(inside, amount, 0), direction=direction)
    return where(inside, moved, 0).bits_as(x.dtype)


@formula("stablehlo.shift_left")
def shift_left(x: RealValue, by: RealValue) -> RealValue:
    return _shifted(x, by, "LEFT")


@formula("stablehlo.shift_right_logical")
def shift_right_logical(x: RealValue, by: RealValue) -> RealValue:
    return _shifted(x, by, "RIGHT")


@formula("stablehlo.shift_right_arithmetic")
def shift_right_arithmetic(x: RealValue, by: RealValue) -> RealValue:
    """Copies of the highest bit move in: a negative number's complement is shifted."""
    signed = x.bits_as(x.dtype.removeprefix("u"))
    below = signed < 0
    moved = _shifted(where(below, ~signed, signed), by, "RIGHT")
    return where(below, ~moved, moved).bits_as(x.dtype)


@formula("stablehlo.popcnt")
def count_ones(x: RealValue) -> RealValue:
    """Ones among the bits: in pairs, in fours, in bytes, and the bytes summed."""
    bits = 8 * size_of(x.dtype)
    v = _unsigned(x)

    def masked(value: RealValue, byte: int) -> RealValue:
        return value & int.from_bytes(bytes([byte]) * (bits // 8), "little")

    v = v - masked(_right(v, 1), 0x55)
    v = masked(v, 0x33) + masked(_right(v, 2), 0x33)
    v = masked(v + _right(v, 4), 0x0F)
    for step in (8, 16, 32):
        if step < bits:
            v = v + _right(v, step)
    return (v & (bits * 2 - 1)).bits_as(x.dtype)


@formula("stablehlo.count_leading_zeros")
def count_leading_zeros(x: RealValue) -> RealValue:
    """Ones are spread to the right of the first; what is left has none."""
    v, step = _unsigned(x), 1
    while step < 8 * size_of(x.dtype):
        v, step = v | _right(v, step), 2 * step
    return count_ones(~v).bits_as(x.dtype)
