"""Floating types of 8 and 16 bits: widened to float32 where they are read, rounded where written.

Rounding is to the nearest there is, of two equally near ones the even; denormals are numbers like
others; what is not a number stays so. What is too large becomes infinite, or not a number in a type
without infinities (float8_e4m3). The same bits come of every instruction set.

    bfloat16   the upper half of a float32: a shift; a rounding addition to the lower half
    float16    the instructions of targets that have them (`InstructionSet.conversions`)
    others     whole numbers: bits in their places in a float32, a product with a power of two that
               moves the exponent, and back (F. Giesen, "float->half variants", 2012)

AVX512-BF16's `vcvtneps2bf16` is not used: it takes denormals for zeros.
"""

from dataclasses import dataclass

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.flags import is_flag, like
from tilesmith.codegen.llvm.text.ir import (
    FLOAT,
    HALF,
    INT32,
    Constant,
    NarrowFloat,
    Value,
    literal,
    scalar_of,
)
from tilesmith.search_space.hardware.instruction_set import InstructionSet

_INFINITE = 0x7F800000


@dataclass(frozen=True)
class Format:
    """Where the bits of a type are.

    Attributes:
        width, mantissa, bias: bits of an element, bits after the point, what exponents are above.
        broken: bits of what is not a number.
        infinite: bits of infinity; in a type that has none, those of what is not a number.
    """

    width: int
    mantissa: int
    bias: int
    broken: int
    infinite: int

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def shift(self) -> int:
        """Bits after the point that a float32 has more."""
        return 23 - self.mantissa


FORMATS = {
    "float16": Format(16, 10, 15, 0x7E00, 0x7C00),
    "float8_e5m2": Format(8, 2, 15, 0x7E, 0x7C),
    "float8_e4m3": Format(8, 3, 7, 0x7F, 0x7F),
}
"""bfloat16 needs none."""


class Narrow:
    """Emits conversions into `builder`, of scalars and vectors."""

    def __init__(self, builder: Builder, instructions: InstructionSet) -> None:
        self.builder = builder
        self._by_instruction = instructions.conversions

    # -- to float32 ---------------------------------------------------------------------------
    def widened(self, value: Value) -> Value:
        """An element of a narrow type as the float32 it stands for."""
        kind = scalar_of(value.type)
        assert isinstance(kind, NarrowFloat), f"{kind} is not a narrow type"
        wide = like(value.type, FLOAT)
        if isinstance(value, Constant) and value.number is not None:
            return literal(wide, value.number)
        if kind.dtype in self._by_instruction:
            return self.builder.convert("fpext", self._as_half(value), wide)
        bits = self.builder.convert("zext", value, like(value.type, INT32))
        if kind.dtype == "bfloat16":
            bits = self.builder.shl(bits, literal(bits.type, 16))
            return self.builder.convert("bitcast", bits, wide)
        return self._widened_by_bits(bits, FORMATS[kind.dtype])

    def _as_half(self, value: Value) -> Value:
        return self.builder.convert("bitcast", value, like(value.type, HALF))

    def _widened_by_bits(self, bits: Value, form: Format) -> Value:
        """A small exponent's power of two is a multiplication, which denormals take part in."""
        builder, kind = self.builder, bits.type
        wide = like(kind, FLOAT)
        magnitude = builder.and_(bits, literal(kind, form.sign - 1))
        sign = builder.and_(bits, literal(kind, form.sign))
        sign = builder.shl(sign, literal(kind, 32 - form.width))
        moved = builder.convert("bitcast", builder.shl(magnitude, literal(kind, form.shift)), wide)
        scaled = builder.fmul(moved, literal(wide, 2.0 ** (127 - form.bias)))
        widened = builder.convert("bitcast", scaled, kind)
        beyond = builder.icmp_signed(">=", magnitude, literal(kind, form.infinite))
        endless = builder.or_(widened, literal(kind, _INFINITE))
        widened = builder.select(beyond, endless, widened)
        return builder.convert("bitcast", builder.or_(widened, sign), wide)

    # -- from float32 -------------------------------------------------------------------------
    def rounded(self, value: Value, kind: NarrowFloat) -> Value:
        """A float32, a flag or a literal as the nearest element of a narrow type."""
        narrow = like(value.type, kind)
        if isinstance(value, Constant) and value.number is not None:
            return literal(narrow, value.number)
        if is_flag(value):
            return self.builder.select(value, literal(narrow, 1.0), literal(narrow, 0.0))
        assert scalar_of(value.type) is FLOAT, f"a {value.type} is rounded as a float32"
        if kind.dtype in self._by_instruction:
            half = self.builder.convert("fptrunc", value, like(value.type, HALF))
            return self.builder.convert("bitcast", half, narrow)
        bits = self.builder.convert("bitcast", value, like(value.type, INT32))
        if kind.dtype == "bfloat16":
            upper = self._rounded_to_upper_half(value, bits)
        else:
            upper = self._rounded_by_bits(value, bits, FORMATS[kind.dtype])
        return self.builder.convert("trunc", upper, narrow)

    def _even(self, bits: Value, shift: int) -> Value:
        """What makes cutting `shift` bits off round to the nearest, or the even, when added."""
        builder, kind = self.builder, bits.type
        last = builder.and_(builder.lshr(bits, literal(kind, shift)), literal(kind, 1))
        return builder.add(last, literal(kind, (1 << (shift - 1)) - 1))

    def _rounded_to_upper_half(self, value: Value, bits: Value) -> Value:
        builder, kind = self.builder, bits.type
        sixteen = literal(kind, 16)
        rounded = builder.lshr(builder.add(bits, self._even(bits, 16)), sixteen)
        quiet = builder.or_(builder.lshr(bits, sixteen), literal(kind, 0x40))
        broken = builder.fcmp_unordered("!=", value, value)
        return builder.select(broken, quiet, rounded)

    def _rounded_by_bits(self, value: Value, bits: Value, form: Format) -> Value:
        builder, kind = self.builder, bits.type
        magnitude = builder.and_(bits, literal(kind, 0x7FFFFFFF))
        sign = builder.lshr(builder.xor(bits, magnitude), literal(kind, 32 - form.width))
        rounded = builder.select(
            builder.icmp_signed("<", magnitude, literal(kind, (128 - form.bias) << 23)),
            self._denormal(magnitude, form),
            self._normal(magnitude, form),
        )
        broken = builder.fcmp_unordered("!=", value, value)
        rounded = builder.select(broken, literal(kind, form.broken), rounded)
        return builder.or_(rounded, sign)

    def _normal(self, magnitude: Value, form: Format) -> Value:
        builder, kind = self.builder, magnitude.type
        moved = builder.sub(magnitude, literal(kind, (127 - form.bias) << 23))
        moved = builder.add(moved, self._even(magnitude, form.shift))
        shifted = builder.lshr(moved, literal(kind, form.shift))
        most = literal(kind, form.infinite)
        return builder.select(builder.icmp_signed(">", shifted, most), most, shifted)

    def _denormal(self, magnitude: Value, form: Format) -> Value:
        """An addition of floating numbers rounds to where the last bit of a denormal is."""
        builder, kind = self.builder, magnitude.type
        wide = like(kind, FLOAT)
        unit = literal(wide, 2.0 ** (24 - form.bias - form.mantissa))
        total = builder.fadd(builder.convert("bitcast", magnitude, wide), unit)
        base = (127 + 24 - form.bias - form.mantissa) << 23
        return builder.sub(builder.convert("bitcast", total, kind), literal(kind, base))
