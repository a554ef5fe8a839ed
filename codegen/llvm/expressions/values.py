"""Scalar expressions in LLVM: arithmetic, selection, masks.

Inside a vector loop every value is either uniform (an LLVM scalar, broadcast where needed) or one
vector with an element for each lane. A loop shorter than the vector works under a constant mask; a
condition that depends on the lane becomes a mask computed at run time.
"""

from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter
from tilesmith.codegen.llvm.expressions.loads import BufferMemory, Lane, LoadEmitter
from tilesmith.codegen.llvm.expressions.registers import RegisterFile
from tilesmith.codegen.llvm.functions.inverses import INVERSES
from tilesmith.codegen.llvm.functions.vector_math import FLAGS, VectorMath
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.flags import (
    as_flag,
    combine,
    compare,
    converted,
    from_flag,
    ordinal,
    whole,
)
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    FLOAT,
    INDEX,
    INT32,
    Constant,
    FloatType,
    IntType,
    NarrowFloat,
    Type,
    Value,
    lanes,
    lanes_of,
    literal,
    numbers_of,
    scalar_of,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type, is_float
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import (
    CONVERSIONS,
    Call,
    Condition,
    Const,
    Index,
    Load,
    Scalar,
    Select,
    erfc_argument,
    loads,
)
from tilesmith.search_space.expressions.scalar import FLAGS as SCALAR_FLAGS


class ValueEmitter(LoadEmitter):
    """Emits scalars; shares builder, indices, registers and memory with the statement emitter."""

    def __init__(
        self,
        builder: Builder,
        index: IndexEmitter,
        registers: RegisterFile,
        memory: BufferMemory,
        math: VectorMath,
    ) -> None:
        super().__init__(builder, index, registers, memory)
        self.math = math

    # -- scalars ------------------------------------------------------------------------------
    def emit(self, value: Scalar, lane: Lane | None, mask: Value | None = None) -> Value:
        """An LLVM value: a vector where the scalar varies with the lane."""
        match value:
            case Const(number):
                return literal(FLOAT, number)
            case Load():
                return self.load(value, lane, mask)
            case Call("where", (flag, *sides)):
                kind = self._moved(value)
                values = [self._side(side, kind, lane, mask) for side in sides]
                return self.apply("where", [self.computed(flag, lane, mask), *values])
            case Call(function, arguments):
                if (z := erfc_argument(value)) is not None:
                    return self.apply("erfc", [self.computed(z, lane, mask)])
                values = [self.computed(a, lane, mask) for a in arguments]
                match value:
                    case Call("exp", (Call("subtract"),)) if is_float(values[0].type):
                        return self.math.exp(values[0], rounded=True)
                folded = self.fold_product(value, values)
                return folded if folded is not None else self.apply(function, values)
            case Select():
                return self._select(value, lane, mask)
            case Index(expression):
                return self._number(expression, lane)

    def computed(self, value: Scalar, lane: Lane | None, mask: Value | None = None) -> Value:
        """A value to compute with: elements of narrow types as float32."""
        return self.wide(self.emit(value, lane, mask))

    def wide(self, value: Value) -> Value:
        """A value of a narrow type as float32; anything else as it is."""
        if not isinstance(scalar_of(value.type), NarrowFloat):
            return value
        key = ("wide", value)
        known = self.index.remembered(key)
        return known or self.index.remember(key, self.math.narrow.widened(value))

    def stored(self, value: Value, buffer: str) -> Value:
        """A value as elements of a buffer. Literals are float32 until they meet one."""
        kind = element_type(self.memory.buffers[buffer].dtype)
        if isinstance(kind, NarrowFloat):
            if scalar_of(value.type) is kind:
                return value
            wide = converted(self.builder, self.wide(value), "float32")
            return self.math.narrow.rounded(wide, kind)
        value = from_flag(self.builder, self.wide(value), kind)
        if isinstance(value, Constant) and not lanes_of(value) and value.type is not kind:
            assert value.number is not None
            return literal(kind, value.number)
        return value

    def _moved(self, value: Scalar) -> NarrowFloat | None:
        """The narrow type of elements that a value only picks, and that all its numbers are of."""
        match value:
            case Load(buffer):
                kind = element_type(self.memory.buffers[buffer].dtype)
                return kind if isinstance(kind, NarrowFloat) else None
            case Select(_, then, otherwise) | Call("where", (_, then, otherwise)):
                types = [self._moved(v) for v in (then, otherwise) if not isinstance(v, Const)]
                numbers = [v.value for v in (then, otherwise) if isinstance(v, Const)]
                first = types[0] if types else None
                alike = first is not None and types[-1] is first
                return first if alike and first and all(map(first.holds, numbers)) else None
            case _:
                return None

    def _side(
        self, value: Scalar, kind: NarrowFloat | None, lane: Lane | None, mask: Value | None
    ) -> Value:
        """One side of a choice, all sides of which are of a narrow type, or none is."""
        if kind is None:
            return self.computed(value, lane, mask)
        if isinstance(value, Const):
            return literal(kind, value.value)
        return self.emit(value, lane, mask)

    def _number(self, expression: Expr, lane: Lane | None) -> Value:
        """An index as a whole number, in every lane where it moves with the lanes."""
        if lane is None or lane.variable not in expression.variables():
            return self.index.value(expression)
        return self._in_lanes(expression, lane, INDEX)

    def _select(self, value: Select, lane: Lane | None, mask: Value | None) -> Value:
        """Only the side that is taken touches memory."""
        uniform: list[Expr] = []
        by_lane: list[Expr] = []
        for expression in value.condition:
            varies = lane is not None and lane.variable in expression.variables()
            (by_lane if varies else uniform).append(expression)
        if uniform and by_lane:
            rest = Select(tuple(uniform), value.then, value.otherwise)
            return self._branch(rest, lane, mask, by_lane=tuple(by_lane))
        if lane is not None and by_lane:
            bits = self.lane_condition(tuple(by_lane), lane)
            inner = bits if mask is None else self.both(bits, mask)
            outside = self.builder.xor(bits, literal(bits.type, -1))
            outside = outside if mask is None else self.builder.and_(outside, mask)
            kind, pair = self._moved(value), ((value.then, inner), (value.otherwise, outside))
            sides = [self._side(side, kind, lane, bits) for side, bits in pair]
            then, other = (self.splat(side, lane.width) for side in same_kind(sides))
            return self.builder.select(bits, then, other)
        return self._branch(value, lane, mask)

    def _branch(
        self, value: Select, lane: Lane | None, mask: Value | None, by_lane: Condition = ()
    ) -> Value:
        """A condition that is the same for all lanes: a branch, so that neither side is wasted."""
        condition, kind = self.condition(value.condition), self._moved(value)
        then = Select(by_lane, value.then, value.otherwise) if by_lane else value.then
        if isinstance(condition, bool):
            return self._side(then if condition else value.otherwise, kind, lane, mask)
        width = lane.width if lane else 0
        with self.builder.if_else(condition) as (yes, no):
            with yes:
                self.index.push()
                one = self._side(then, kind, lane, mask)
                one = self.splat(one, width) if width else one
                self.index.pop()
                from_one = self.builder.block
            with no:
                self.index.push()
                two = self._side(value.otherwise, kind, lane, mask)
                two = self.splat(two, width) if width else two
                self.index.pop()
                from_two = self.builder.block
        one, two = same_kind([one, two])
        merged = self.builder.phi(one.type)
        merged.add_incoming(one, from_one)
        merged.add_incoming(two, from_two)
        return merged

    def condition(self, condition: Condition) -> Value | bool:
        """All expressions >= 0, as a bit or a bool."""
        total: Value | None = None
        for expression in condition:
            value = self.index.integer(expression)
            if isinstance(value, int):
                if value < 0:
                    return False
                continue
            bit = self.builder.icmp_signed(">=", value, INDEX(0))
            total = bit if total is None else self.builder.and_(total, bit)
        return True if total is None else total

    def lane_condition(self, condition: Condition, lane: Lane) -> Value:
        """All expressions >= 0, for each lane."""
        total: Value | None = None
        for expression in condition:
            bits = self._lane_compare(expression, lane)
            total = bits if total is None else self.both(total, bits)
        assert total is not None
        return total

    def first_lanes(self, count: Value, width: int) -> Value:
        """Bits of the first `count` lanes."""
        kind = vector(INT32, width)
        ends = self.splat(self.builder.convert("trunc", count, INT32), width)
        return self.builder.icmp_signed(">", ends, lanes(kind, list(range(width))))

    def _lane_compare(self, expression: Expr, lane: Lane) -> Value:
        values = self._in_lanes(expression, lane, INT32)
        numbers = numbers_of(values)
        if numbers is not None:
            return lanes(vector(BOOL, lane.width), [int(number >= 0) for number in numbers])
        return self.builder.icmp_signed(">=", values, literal(values.type, 0))

    def _in_lanes(self, expression: Expr, lane: Lane, scalar: IntType) -> Value:
        """An index expression for each lane; -1 in those not in use."""

        def value() -> Value:
            integer = self.index.value(expression)
            return integer if scalar is INDEX else self.builder.convert("trunc", integer, scalar)

        kind = vector(scalar, lane.width)
        factor = expression.coefficient(lane.variable)
        if factor is not None and factor.constant is not None:
            first = self.index.integer(expression)
            steps = [factor.constant * i for i in range(lane.width)]
            if isinstance(first, int):
                return lanes(kind, [first + step for step in steps])
            return self.builder.add(self.splat(value(), lane.width), lanes(kind, steps))
        values: Value = literal(kind, -1)
        for position in range(lane.active):
            self.index.environment[lane.variable] = position
            values = self.builder.insert_element(values, value(), INDEX(position))
        self.index.environment[lane.variable] = 0
        return values

    def fold_product(self, value: Call, factors: list[Value]) -> Value | None:
        """x*1, and x*0 where the 0 was read: transform matrices and padding are full of them, and
        mean what they leave out. A 0 that is written is a factor like others: 0 * inf is NaN."""
        if value.function != "multiply":
            return None
        for argument, factor, other in zip(value.arguments, factors, factors[::-1], strict=True):
            if isinstance(factor, Constant):
                if factor.number == 1:
                    return other
                if factor.number == 0 and any(loads(argument)):
                    return factor
        return None

    # -- functions ----------------------------------------------------------------------------
    def apply(self, function: str, values: list[Value]) -> Value:
        """A function of `scalar.FUNCTIONS`, or erfc, on values of one width, uniform ones splat."""
        width = max(lanes_of(v) for v in values)
        if function == "ordinal":
            return ordinal(self.builder, values[0])
        if function in CONVERSIONS:
            return converted(self.builder, values[0], CONVERSIONS[function])
        if function in ("where", "and", "or", "xor", "not"):
            return self._choose(function, values, width)
        values = self._alike(values, flags=function in SCALAR_FLAGS)
        if width:
            values = [self.splat(v, width) for v in values]
        if function in SCALAR_FLAGS:
            return compare(self.builder, function, values)
        if not is_float(values[0].type):
            return whole(self.builder, function, values)
        return self._apply_float(function, values)

    def _choose(self, function: str, values: list[Value], width: int) -> Value:
        """A choice by a flag, or logic of flags."""
        count = 1 if function == "where" else len(values)
        flags = [as_flag(self.builder, value) for value in values[:count]]
        sides = self._alike(values[count:], flags=True) if function == "where" else []
        if width:
            flags, sides = ([self.splat(v, width) for v in part] for part in (flags, sides))
        if function == "where":
            return self.builder.select(flags[0], *sides)
        return combine(self.builder, function, flags)

    def _alike(self, values: list[Value], flags: bool = False) -> list[Value]:
        """Values of one element type: flags and literals take that of the others; alone they are
        float32, or stay flags where those will do."""
        kinds = [scalar_of(v.type) for v in values if not isinstance(v, Constant)]
        others = [kind for kind in kinds if kind is not BOOL]
        if kinds and (others or not flags):
            scalar = others[0] if others else FLOAT
            values = [from_flag(self.builder, value, scalar) for value in values]
        return same_kind(values)

    def _apply_float(self, function: str, values: list[Value]) -> Value:
        builder, math = self.builder, self.math
        match function:
            case "add":
                return self.add(*values)
            case "subtract":
                return builder.fsub(*values, flags=FLAGS)
            case "multiply":
                return builder.fmul(*values, flags=FLAGS)
            case "divide":
                return builder.fdiv(*values, flags=FLAGS)
            case "maximum" | "minimum":
                return math.extreme(function, *values)
            case "negate":
                return builder.fneg(*values)
            case "absolute" | "sqrt" | "floor" | "ceil" | "round":
                names = {"absolute": "fabs", "round": "roundeven"}
                return math.call(f"llvm.{names.get(function, function)}", *values)
            case _ if function in INVERSES:
                return INVERSES[function](math, *values)
            case _:
                result: Value = getattr(math, function)(*values)
                return result

    def add(self, left: Value, right: Value) -> Value:
        """left + right; the identity is dropped (literal transform matrices leave many zeros)."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Constant) and one.number == 0:
                return other
        return self.builder.fadd(left, right, flags=FLAGS)


def same_kind(values: list[Value]) -> list[Value]:
    """Literals (float32 at first) take the element type of the values they stand beside; among
    themselves, that of one converted by name."""
    kinds = [v.type for v in values if not isinstance(v, Constant)]
    kinds = kinds or [v.type for v in values if scalar_of(v.type) is not FLOAT]
    if not kinds:
        return values
    scalar = scalar_of(kinds[0])
    return [_retyped(v, scalar) for v in values]


def _retyped(value: Value, scalar: Type) -> Value:
    """A literal as one of `scalar` type; anything else as it is."""
    if not isinstance(value, Constant) or value.number is None or scalar_of(value.type) is scalar:
        return value
    if not lanes_of(value):
        return literal(scalar, value.number)
    assert isinstance(scalar, IntType | FloatType), f"no vectors of {scalar}"
    return literal(vector(scalar, lanes_of(value)), value.number)
