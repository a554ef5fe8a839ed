"""exp, log, tanh, erf, erfc, sigmoid, sin, cos of float32 numbers, as polynomials of stated error.

Emitted as straight-line code on whatever width the caller has, so that a softmax or a GELU is as
vectorised as the loop around it.

- exp: Cody-Waite reduction x = n ln2 + r, |r| <= ln2/2, a polynomial of degree 5 on r; relative
  error below 2e-7, where the result is denormal half a step of it more; 0 below -104, infinite
  above 88.8. Scaling by 2^n is an instruction where the target has one, else two multiplications.
  Of a difference x, n ln2 is taken off at once: 3e-9 |x| more, where its rounding is 6e-8 |x|.
- log: Cephes `logf`: x = m 2^e with m in [sqrt(1/2), sqrt 2); relative error below 3e-7, of
  denormal x too; -inf of zeros, NaN of negative x. Taking x apart is two instructions where the
  target has them, which know these cases; elsewhere they cost three comparisons.
- power: exp(y log |x|), with the signs and exceptions of C's `pow`; relative error below
  4e-7 (1 + |y log x|).
- sigmoid: 1 / (1 + exp(-x)); relative error below 4e-7 for x > -88, below which it is 0.
- tanh and erf: x P(x^2) / Q(x^2), the input kept below the point where float32 has reached 1;
  fitted by linearised, reweighted least squares at Chebyshev points; relative error below 4e-7.
- erfc: exp(-x^2) P(x) / Q(x), which is fitted likewise to the scaled function erfcx; 2 less that of
  -x where x is negative. What rounding loses of x^2 is kept, so that the relative error is below
  8e-7 to the end, where the result is denormal half a step of it more; below 1.2e-7 x^2 + 8e-7
  where the target does not multiply and add in one instruction. Code generation writes 1 + erf(x)
  and 1 - erf(x) so, of which nothing is left far out: Gelu's tail.

What is not a number stays so in all of them; denormals are numbers like others.

- sin and cos: an angle is x = n pi/2 + r, |r| <= pi/4: n and r are found in double precision, pi/2
in two parts, which is right to float32 for angles up to 2^30. A larger one is m 2^s, m a whole
number of 24 bits: the part of a turn that it is beyond whole turns is the fraction of m times the
64 bits of 1/(2 pi) from bit s on (Payne and Hanek), of which 32 bits are kept and go the same way
as small angles. Of r, Cephes' polynomials for `sinf` and `cosf` (S. Moshier). Absolute error below
2e-7, relative error below 2e-7 up to an angle of 1e4; what is infinite or no number gives no
number.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from tilesmith.codegen.llvm.functions.narrow import Narrow
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    DOUBLE,
    INDEX,
    INT32,
    Constant,
    FloatType,
    IntType,
    Type,
    Value,
    VectorType,
    integer,
    literal,
    scalar_of,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type, suffix
from tilesmith.search_space.hardware.instruction_set import InstructionSet, TargetIntrinsic

_HIGH = math.pi / 2
_LOW = 6.123233995736766e-17
"""pi/2 less its nearest double."""
_LARGE = 2.0**30
_TURNS = (0x28BE60DB9391054A, 0x7F09D5F47D4D3770, 0x36D8A5664F10E410)
"""1/(2 pi), 64 bits a word: as many as the fraction of a float32's product with it depends on."""
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_MOST = 0.7854
"""|r| at most, a little beyond pi/4."""

Call = Callable[..., Value]
"""`VectorMath.call`: an intrinsic overloaded on its first operand."""


def sine(builder: Builder, call: Call, x: Value, quarters: int) -> Value:
    """sin(x + quarters pi/2): the cosine with one quarter."""
    kind = x.type
    wide = vector(DOUBLE, kind.count) if isinstance(kind, VectorType) else DOUBLE
    angle = _without_turns(builder, call, x, builder.convert("fpext", x, wide))
    n = call("llvm.roundeven", builder.fmul(angle, literal(wide, 2 / math.pi)))
    r = call("llvm.fma", n, literal(wide, -_HIGH), angle)
    r = call("llvm.fma", n, literal(wide, -_LOW), r)
    turned = builder.fadd(n, literal(wide, float(quarters)))
    turns = call("llvm.floor", builder.fmul(turned, literal(wide, 0.25)))
    quarter = builder.fadd(turned, builder.fmul(turns, literal(wide, -4.0)))
    second = builder.fcmp_ordered(">=", quarter, literal(wide, 2.0))
    within = builder.select(second, builder.fadd(quarter, literal(wide, -2.0)), quarter)
    odd = builder.fcmp_ordered(">=", within, literal(wide, 1.0))
    value = builder.select(odd, *_of(builder, call, builder.convert("fptrunc", r, kind)))
    return builder.select(second, builder.fneg(value), value)


def _without_turns(builder: Builder, call: Call, x: Value, angle: Value) -> Value:
    """`angle`, which is x in double precision; of a large one, what is beyond whole turns."""
    count = x.type.count if isinstance(x.type, VectorType) else 0
    half, whole = (vector(kind, count) if count else kind for kind in (INT32, INDEX))

    def number(value: int) -> Value:
        return literal(whole, value)

    bits = builder.convert("zext", builder.convert("bitcast", x, half), whole)
    mantissa = builder.or_(builder.and_(bits, number((1 << 23) - 1)), number(1 << 23))
    exponent = builder.and_(builder.lshr(bits, number(23)), number(255))
    shift = builder.sub(exponent, number(150))  # modulo 64 where x is small, and not looked at
    further = builder.icmp_signed(">=", shift, number(64))
    first, second = (
        builder.select(further, number(_TURNS[word + 1]), number(_TURNS[word])) for word in (0, 1)
    )
    window = call("llvm.fshl", first, second, shift)
    part = builder.convert("trunc", builder.lshr(builder.mul(mantissa, window), number(32)), half)
    turns = builder.convert("sitofp", part, angle.type)
    turned = builder.fmul(turns, literal(angle.type, 2 * math.pi / 2**32))
    size = call("llvm.fabs", angle)
    large = builder.and_(
        builder.fcmp_ordered(">=", size, literal(angle.type, _LARGE)),
        builder.fcmp_ordered("<", size, literal(angle.type, math.inf)),
    )
    signed = call("llvm.copysign", literal(angle.type, 1.0), angle)
    return builder.select(large, builder.fmul(turned, signed), angle)


def _of(builder: Builder, call: Call, r: Value) -> tuple[Value, Value]:
    """(cosine, sine) of a small angle."""
    for sign, limit in ((">", _MOST), ("<", -_MOST)):
        beyond = builder.fcmp_ordered(sign, r, literal(r.type, limit))
        r = builder.select(beyond, literal(r.type, limit), r)
    square = builder.fmul(r, r)

    def polynomial(coefficients: tuple[float, ...]) -> Value:
        total: Value = literal(r.type, coefficients[0])
        for coefficient in coefficients[1:]:
            total = call("llvm.fma", total, square, literal(r.type, coefficient))
        return total

    sine = call("llvm.fma", builder.fmul(polynomial(_SINE), square), r, r)
    near = call("llvm.fma", square, literal(r.type, -0.5), literal(r.type, 1.0))
    cosine = call("llvm.fma", polynomial(_COSINE), builder.fmul(square, square), near)
    return cosine, sine


FLAGS = "contract nsz"

_EXP = (8.2902721035e-3, 4.1898159622e-2, 1.6667638127e-1, 4.9999147841e-1, 9.9999970631e-1, 1.0)
"""Of such polynomials that nearest to exp, relatively, within ln 2 / 2 of 0: 9.2e-8 off."""
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LN2_SHORT = 0.693359375
"""ln 2 to 10 bits, 2.12194440e-4 above it: a product with an exponent is exact."""
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860677e-6
"""Their sum is ln 2; the first has 15 bits, so that its product with an exponent is exact. Both are
positive, so that an infinite exponent gives an infinite logarithm."""
_TANH_LIMIT = 9.3
_TANH = (
    (1.33373991e-8, 2.05967968e-5, 3.49484857e-3, 1.33804052e-1, 9.99999979e-1),
    (7.76954499e-7, 3.28442048e-4, 2.58741757e-2, 4.67137207e-1, 1.0),
)
_ERF_LIMIT = 4.0
_ERF = (
    (2.04988809e-6, 2.8485766e-4, 3.76531556e-3, 5.27477574e-2, 1.90401983e-1, 1.12837915),
    (3.80883249e-5, 1.16242769e-3, 1.49686369e-2, 1.14106918e-1, 5.02072108e-1, 1.0),
)
"""P and Q, highest power first. At the limits the quotient is a rounding above 1, so that cutting
it to 1 makes everything beyond exact."""
_ERFC_LIMIT = 10.1
"""erfc is below half the smallest denormal from here on."""
_ERFC = (
    (3.27976179e-2, 2.29224215e-1, 7.3161569e-1, 1.23842167, 1.00000001),
    (5.81315654e-2, 4.06315743e-1, 1.32539011, 2.40225576, 2.36680142, 1.0),
)
"""P and Q, highest power first; no term cancels another."""


class VectorMath:
    """Emits functions into `builder` on scalars or vectors of float32.

    `instructions`: of the target, some of which do a whole operation.
    """

    def __init__(self, builder: Builder, instructions: InstructionSet) -> None:
        self.builder = builder
        self.narrow = Narrow(builder, instructions)
        self._multiply_add = "llvm.fma" if instructions.fused else "llvm.fmuladd"
        self.intrinsics: dict[tuple[str, Type], TargetIntrinsic] = {
            (one.operation, vector(element_type(one.dtype), one.lanes)): one
            for one in instructions.intrinsics
        }

    def call(self, name: str, *values: Value, flags: str = "") -> Value:
        """An LLVM intrinsic overloaded on the type of its first operand (`llvm.fma.v16f32`)."""
        kind = values[0].type
        scalar = scalar_of(kind)
        assert isinstance(scalar, IntType | FloatType), f"no intrinsic on {kind}"
        width = f"v{kind.count}" if isinstance(kind, VectorType) else ""
        kinds = [value.type for value in values]
        function = self.builder.module.declare(f"{name}.{width}{suffix(scalar)}", kind, kinds)
        return self.builder.call(function, values, flags)

    def extreme(self, name: str, left: Value, right: Value) -> Value:
        """`maximum` or `minimum`; NaN where either is. Of two zeros, either.

        On x86, whose own instruction gives the second operand where either is NaN, LLVM writes that
        instruction alone where one operand is a constant. Of two variables it keeps the second
        one's NaN, and the first one's comes back by an instruction where the target has one for
        that; elsewhere LLVM writes a comparison and a choice.
        """
        keep = self.intrinsics.get(("keep_nan", left.type))
        if keep is None or isinstance(left, Constant) or isinstance(right, Constant):
            return self.call(f"llvm.{name}", left, right, flags="nsz")
        bits = self.builder.fcmp_ordered(">" if name == "maximum" else "<", left, right)
        either = self.builder.select(bits, left, right, flags="nsz")
        return self._one_instruction(keep, {"x": either, "y": left})

    def extreme_across(self, name: str, values: Value) -> Value:
        """The `maximum` or `minimum` of a vector's lanes; NaN where any is. Looking for NaN once
        lets every step be one instruction."""
        broken = self.across("or", self.builder.fcmp_unordered("!=", values, values))
        names = {"maximum": "fmax", "minimum": "fmin"}
        extreme = self.across(names[name], values, flags="nnan nsz")
        return self.builder.select(broken, literal(extreme.type, math.nan), extreme)

    def across(self, name: str, values: Value, *start: Value, flags: str = "") -> Value:
        """The lanes of a vector as one, from `start` on: `llvm.vector.reduce.fadd.v16f32`."""
        kind = values.type
        assert isinstance(kind, VectorType)
        full = f"llvm.vector.reduce.{name}.v{kind.count}{suffix(kind.element)}"
        kinds = [value.type for value in (*start, values)]
        function = self.builder.module.declare(full, kind.element, kinds)
        return self.builder.call(function, [*start, values], flags)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.call(self._multiply_add, a, b, c)

    def _number(self, like: Value, value: float) -> Constant:
        return literal(like.type, value)

    def _horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Polynomial with the highest coefficient first."""
        total: Value = self._number(x, coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self._number(x, coefficient))
        return total

    def _integers(self, like: Value) -> Type:
        kind = like.type
        return vector(INT32, kind.count) if isinstance(kind, VectorType) else INT32

    def exp(self, x: Value, rounded: bool = False) -> Value:
        """`rounded`: x is a difference that was."""
        clamped = self._clamp(x, -104.0, 89.0)
        n = self._binary_exponent(clamped)
        if rounded:
            return self._scaled(self.fma(n, self._number(x, -math.log(2)), clamped), n)
        return self._exp(self.fma(n, self._number(x, -_LN2_SHORT), clamped), n)

    def _binary_exponent(self, x: Value) -> Value:
        """x / ln 2 as a whole number."""
        scaled = self.builder.fmul(x, self._number(x, 1.44269504088896341), flags=FLAGS)
        return self.call("llvm.roundeven", scaled)

    def _exp(self, r: Value, n: Value) -> Value:
        """2^n exp(r'), r' less than r by what `_LN2_SHORT` leaves of n ln 2."""
        return self._scaled(self.fma(n, self._number(r, 2.12194440e-4), r), n)

    def _scaled(self, r: Value, n: Value) -> Value:
        """2^n exp(r)."""
        builder, x = self.builder, r
        y = self._horner(r, _EXP)
        scale = self.intrinsics.get(("scale_by_power", x.type))
        if scale is not None:
            return self._one_instruction(scale, {"x": y, "n": n})
        # 2^n in two halves: from -150 to 128, n has no representation of its own.
        integers = self._integers(x)
        whole = builder.freeze(builder.convert("fptosi", n, integers))  # NaN has no integer
        half = builder.ashr(whole, literal(integers, 1))
        y = builder.fmul(y, self._power_of_two(half, x))
        return builder.fmul(y, self._power_of_two(builder.sub(whole, half), x))

    def _clamp(self, x: Value, low: float, high: float) -> Value:
        """Into [low, high]; not-a-number stays. Each side is one instruction."""
        for sign, limit in (("<", low), (">", high)):
            outside = self.builder.fcmp_ordered(sign, x, self._number(x, limit))
            x = self.builder.select(outside, self._number(x, limit), x)
        return x

    def _one_instruction(self, chosen: TargetIntrinsic, operands: Mapping[str, Value]) -> Value:
        """A target's own intrinsic; arguments that are no operands are constants: "i16 65535", or
        "16 x i32 34" with that many lanes."""
        arguments: list[Value] = []
        for name in chosen.arguments:
            if name in operands:
                arguments.append(operands[name])
                continue
            *count, kind, number = name.replace(" x ", " ").split()
            scalar = integer(int(kind[1:]))
            lanes = vector(scalar, int(count[0])) if count else None
            arguments.append(literal(lanes, int(number)) if lanes else scalar(int(number)))
        kinds = [value.type for value in arguments]
        result = next(iter(operands.values())).type
        function = self.builder.module.declare(chosen.name, result, kinds)
        return self.builder.call(function, arguments)

    def _power_of_two(self, exponent: Value, like: Value) -> Value:
        biased = self.builder.add(exponent, literal(exponent.type, 127))
        shifted = self.builder.shl(biased, literal(exponent.type, 23))
        return self.builder.convert("bitcast", shifted, like.type)

    def log(self, x: Value) -> Value:
        builder, number = self.builder, self._number
        mantissa, e = self._mantissa_and_exponent(x)
        small = builder.fcmp_ordered("<", mantissa, number(x, 0.707106781186547524))
        e = builder.select(small, builder.fsub(e, number(x, 1.0)), e)
        doubled = builder.fadd(mantissa, mantissa)
        m = builder.fsub(builder.select(small, doubled, mantissa), number(x, 1.0))
        square = builder.fmul(m, m)
        y = builder.fmul(builder.fmul(self._horner(m, _LOG), m), square)
        y = self.fma(e, number(x, _LN2_LOW), y)
        y = self.fma(square, number(x, -0.5), y)
        y = self.fma(e, number(x, _LN2_HIGH), builder.fadd(m, y))
        return y if ("mantissa", x.type) in self.intrinsics else self._where_log_is(x, y)

    def _mantissa_and_exponent(self, x: Value) -> tuple[Value, Value]:
        """(m, e) with x = m 2^e and m in [1/2, 1), for finite positive x.

        Where instructions give both, they also make a logarithm of (1, +-infinity) for infinity and
        zeros, and NaN for what is negative or NaN.
        """
        builder, number = self.builder, self._number
        mantissa = self.intrinsics.get(("mantissa", x.type))
        exponent = self.intrinsics.get(("exponent", x.type))
        if mantissa is not None and exponent is not None:
            e = builder.fadd(self._one_instruction(exponent, {"x": x}), number(x, 1.0))
            return self._one_instruction(mantissa, {"x": x}), e
        integers = self._integers(x)
        tiny = builder.fcmp_ordered("<", x, number(x, 2.0**-126))
        normal = builder.select(tiny, builder.fmul(x, number(x, 2.0**23)), x)
        bits = builder.convert("bitcast", normal, integers)
        bias = builder.select(tiny, literal(integers, 126 + 23), literal(integers, 126))
        e = builder.sub(builder.ashr(bits, literal(integers, 23)), bias)
        bits = builder.and_(bits, literal(integers, 0x007FFFFF))
        bits = builder.or_(bits, literal(integers, 0x3F000000))
        m = builder.convert("bitcast", bits, x.type)
        return m, builder.convert("sitofp", e, x.type)

    def _where_log_is(self, x: Value, y: Value) -> Value:
        """y where x is positive and finite; else the logarithm's limit, or NaN."""
        builder, number = self.builder, self._number
        finite = builder.fcmp_ordered("<", x, number(x, math.inf))
        y = builder.select(finite, y, x)
        zero = builder.fcmp_ordered("==", x, number(x, 0.0))
        limit = builder.select(zero, number(x, -math.inf), number(x, math.nan))
        return builder.select(builder.fcmp_ordered(">", x, number(x, 0.0)), y, limit)

    def power(self, x: Value, y: Value) -> Value:
        """x^y as C's `pow`: exp(y log |x|), its sign and its exceptions."""
        builder, number = self.builder, self._number
        logarithm = self.log(self.call("llvm.fabs", x))
        product = builder.fmul(y, logarithm, flags=FLAGS)
        if not (isinstance(y, Constant) and y.number and math.isfinite(y.number)):
            one = builder.fcmp_ordered("==", logarithm, number(x, 0.0))
            one = builder.or_(one, builder.fcmp_ordered("==", y, number(x, 0.0)))
            product = builder.select(one, number(x, 0.0), product)  # also beside inf and NaN
        powered = self.exp(product)
        odd, broken = self._parity(y)
        powered = builder.select(odd, self.call("llvm.copysign", powered, x), powered)
        negative = builder.fcmp_ordered("<", x, number(x, 0.0))
        finite = builder.fcmp_ordered(">", x, number(x, -math.inf))
        undefined = builder.and_(builder.and_(negative, finite), broken)
        return builder.select(undefined, number(x, math.nan), powered)

    def _parity(self, y: Value) -> tuple[Value, Value]:
        """Whether a number is odd, and whether it is not whole (NaN is not). LLVM folds both of a
        constant, and what hangs on them."""
        builder = self.builder
        half = builder.fmul(y, self._number(y, 0.5))
        broken = builder.fcmp_unordered("!=", self.call("llvm.floor", y), y)
        uneven = builder.fcmp_unordered("!=", self.call("llvm.floor", half), half)
        whole = builder.xor(broken, literal(broken.type, -1))
        return builder.and_(uneven, whole), broken

    def reciprocal(self, x: Value) -> Value:
        return self.builder.fdiv(self._number(x, 1.0), x)

    def sigmoid(self, x: Value) -> Value:
        power = self.exp(self.builder.fneg(x))
        return self.reciprocal(self.builder.fadd(power, self._number(x, 1.0)))

    def sin(self, x: Value) -> Value:
        return sine(self.builder, self.call, x, 0)

    def cos(self, x: Value) -> Value:
        return sine(self.builder, self.call, x, 1)

    def tanh(self, x: Value) -> Value:
        return self._odd(x, _TANH_LIMIT, *_TANH)

    def erf(self, x: Value) -> Value:
        return self._odd(x, _ERF_LIMIT, *_ERF)

    def erfc(self, x: Value) -> Value:
        """1 - erf(x), right where that cancels."""
        builder, number = self.builder, self._number
        size = self.call("llvm.fabs", x)
        beyond = builder.fcmp_ordered(">", size, number(x, _ERFC_LIMIT))
        size = builder.select(beyond, number(x, _ERFC_LIMIT), size)
        less = builder.fneg(size)
        n = self._binary_exponent(builder.fmul(less, size))
        whole = builder.fmul(n, number(x, -_LN2_SHORT))  # exact, and so is what x^2 leaves of it
        power = self._exp(self.fma(less, size, whole), n)
        over, under = (self._horner(size, part) for part in _ERFC)
        tail = builder.fdiv(builder.fmul(power, over), under)
        negative = builder.fcmp_ordered("<", x, number(x, 0.0))
        return builder.select(negative, builder.fsub(number(x, 2.0), tail), tail)

    def _odd(self, x: Value, limit: float, over: Sequence[float], under: Sequence[float]) -> Value:
        """x P(x^2) / Q(x^2) of x kept within +-limit, the result within +-1."""
        builder = self.builder
        x = self._clamp(x, -limit, limit)
        square = builder.fmul(x, x, flags=FLAGS)
        top = builder.fmul(x, self._horner(square, over), flags=FLAGS)
        quotient = builder.fdiv(top, self._horner(square, under), flags=FLAGS)
        return self._clamp(quotient, -1.0, 1.0)
