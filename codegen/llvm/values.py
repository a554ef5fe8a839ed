"""Scalar expressions in LLVM: loads, arithmetic, masks.

Inside a vector loop every value is either uniform (an LLVM scalar, broadcast where needed) or one
vector with an element for each lane. A loop shorter than the vector works under a constant mask; a
condition that depends on the lane becomes a mask computed at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir

from codegen.llvm.indexing import CompiledAccess, IndexEmitter, compile_access
from codegen.llvm.registers import RegisterFile
from codegen.llvm.types import (
    INDEX,
    element_type,
    first_lanes,
    is_float,
    lanes_of,
    literal,
    suffix,
    undefined,
    zero,
)
from codegen.llvm.vector_math import FLAGS, VectorMath, intrinsic
from search_space.errors import CodegenError
from search_space.expression import Expr
from search_space.program import Buffer
from search_space.scalar import Call, Condition, Const, Load, Scalar, Select

_BOOL = ir.IntType(1)
_FIRST = INDEX(0)


@dataclass(frozen=True)
class Lane:
    """The vector loop around a block: its variable, vector width, and lanes really in use."""

    variable: str
    width: int
    active: int


@dataclass
class Memory:
    """What the emitter knows of buffers: their shapes, base pointers, and who writes them."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    pointers: dict[str, ir.Value] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    literals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class ValueEmitter:
    """Emits scalars; shares builder, indices, registers and memory with the statement emitter."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        registers: RegisterFile,
        memory: Memory,
        math: VectorMath,
    ) -> None:
        self.builder = builder
        self.index = index
        self.registers = registers
        self.memory = memory
        self.math = math
        index.read = self._read_index
        self._compiled: dict[tuple[Load, str | None], CompiledAccess] = {}

    # -- accesses -----------------------------------------------------------------------------
    def compiled(self, access: Load, lane: Lane | None) -> CompiledAccess:
        """The compiled form of an access, made once for each vector variable."""
        key = (access, lane.variable if lane else None)
        if key not in self._compiled:
            if access.buffer not in self.memory.buffers:
                raise CodegenError(f"buffer '{access.buffer}' is used outside its allocation")
            buffer = self.memory.buffers[access.buffer]
            self._compiled[key] = compile_access(access, buffer, key[1])
        return self._compiled[key]

    def place(self, compiled: CompiledAccess) -> tuple[int, tuple[tuple[ir.Value, int], ...]]:
        """(constant, runtime terms) of an access's offset, in elements, at lane zero."""
        return self.index.split(compiled.offset)

    def pointer(
        self, buffer: str, number: int, runtime: tuple[tuple[ir.Value, int], ...]
    ) -> ir.Value:
        """Address of an element."""
        kind = element_type(self.memory.buffers[buffer].dtype)
        base = self.memory.pointers[buffer]
        if runtime:
            key = ("address", buffer, runtime)
            known = self.index.remembered(key)
            if known is None:
                offset = self.index.sum(runtime)
                known = self.builder.gep(base, [offset], inbounds=True, source_etype=kind)
                self.index.remember(key, known)
            base = known
        if not number:
            return base
        return self.builder.gep(base, [INDEX(number)], inbounds=True, source_etype=kind)

    def _read_index(self, tensor: str, index: Any) -> ir.Value:
        """An element of a one-dimensional integer tensor, as 64 bits."""
        fixed = isinstance(index, int)
        address = self.pointer(tensor, index if fixed else 0, () if fixed else ((index, 1),))
        value = self._load_at(tensor, address, None, None)
        return self.builder.sext(value, INDEX) if value.type != INDEX else value

    def enter_lane(self, lane: Lane | None) -> None:
        """Offsets are taken at lane zero."""
        if lane is not None:
            self.index.environment[lane.variable] = 0

    def mask(self, lane: Lane, dynamic: ir.Value | None) -> ir.Value | None:
        """Lanes in use as a vector of bits, or None where all are."""
        if lane.active >= lane.width:
            return dynamic
        kind = ir.VectorType(_BOOL, lane.width)
        fixed = ir.Constant(kind, [_BOOL(int(i < lane.active)) for i in range(lane.width)])
        return fixed if dynamic is None else self.builder.and_(fixed, dynamic)

    def splat(self, value: ir.Value, width: int) -> ir.Value:
        """A scalar in every lane."""
        if lanes_of(value):
            return value
        kind = ir.VectorType(value.type, width)
        if isinstance(value, ir.Constant):
            if is_float(value.type):
                return literal(kind, value.constant)
            return ir.Constant(kind, [value] * width)
        key = ("splat", value, width)
        known = self.index.remembered(key)
        if known is not None:
            return known
        start = self.builder.insert_element(undefined(kind), value, _FIRST)
        order = first_lanes(width)
        return self.index.remember(key, self.builder.shuffle_vector(start, undefined(kind), order))

    # -- scalars ------------------------------------------------------------------------------
    def emit(self, value: Scalar, lane: Lane | None, mask: ir.Value | None = None) -> ir.Value:
        """An LLVM value: a vector where the scalar varies with the lane."""
        match value:
            case Const(number):
                return literal(ir.FloatType(), number)
            case Load():
                return self.load(value, lane, mask)
            case Call(function, arguments):
                return self.apply(function, [self.emit(a, lane, mask) for a in arguments])
            case Select():
                return self._select(value, lane, mask)

    def load(self, access: Load, lane: Lane | None, mask: ir.Value | None = None) -> ir.Value:
        """An element, or a vector of them."""
        compiled = self.compiled(access, lane)
        if compiled.stride is None:
            return self._load_lanes(access, lane, mask)
        number, runtime = self.place(compiled)
        if access.buffer in self.memory.literals:
            return self._literal(access, number, runtime)
        if access.buffer in self.registers:
            return self.registers.load(access.buffer, number, bool(compiled.stride), runtime)
        vector = lane is not None and compiled.stride == 1
        if lane is not None and (
            compiled.stride not in (0, 1) or (mask is not None and not vector)
        ):
            return self._load_lanes(access, lane, mask)
        shape = (lane.width, lane.active) if vector and lane else None
        key = ("load", access.buffer, number, runtime, shape)
        fixed = access.buffer not in self.memory.written and mask is None
        known = self.index.remembered(key) if fixed else None
        if known is not None:
            return known
        address = self.pointer(access.buffer, number, runtime)
        found = self._load_at(access.buffer, address, lane if vector else None, mask)
        return self.index.remember(key, found) if fixed else found

    def _load_at(
        self, buffer: str, address: ir.Value, lane: Lane | None, mask: ir.Value | None
    ) -> ir.Value:
        scalar = element_type(self.memory.buffers[buffer].dtype)
        size = scalar.width // 8 if isinstance(scalar, ir.IntType) else _float_bytes(scalar)
        if lane is None:
            return self.builder.load(address, align=size, typ=scalar)
        kind = ir.VectorType(scalar, lane.width)
        bits = self.mask(lane, mask)
        if bits is None:
            return self.builder.load(address, align=size, typ=kind)
        name = f"llvm.masked.load.v{lane.width}{suffix(scalar)}.p0"
        align = ir.IntType(32)
        arguments = [address.type, align, bits.type, kind]
        function = intrinsic(self.builder.module, name, kind, arguments)
        return self.builder.call(function, [address, align(size), bits, zero(kind)])

    def _load_lanes(self, access: Load, lane: Lane | None, mask: ir.Value | None) -> ir.Value:
        """Strided and irregular accesses: from a window of two vectors, or lane by lane."""
        assert lane is not None
        plain = self.compiled(access, None)
        places: list[tuple[int, tuple[tuple[ir.Value, int], ...]]] = []
        for position in range(lane.active):
            self.index.environment[lane.variable] = position
            places.append(self.index.split(plain.offset))
        self.index.environment[lane.variable] = 0
        numbers = [number for number, _ in places]
        near = max(numbers) - min(numbers) < 2 * lane.width
        once = mask is None or len(set(numbers)) == len(numbers)
        if near and once and all(runtime == places[0][1] for _, runtime in places):
            return self._load_window(access.buffer, lane, mask, numbers, places[0][1])
        return self._load_each(access.buffer, lane, mask, places)

    def _load_window(
        self,
        buffer: str,
        lane: Lane,
        mask: ir.Value | None,
        numbers: list[int],
        runtime: tuple[tuple[ir.Value, int], ...],
    ) -> ir.Value:
        """One or two whole vectors that hold every lane's element, then a shuffle.

        Nothing outside the first and last element is read; under a mask, nothing but its lanes.
        """
        width, first, last = lane.width, min(numbers), max(numbers)
        source = {number - first: position for position, number in enumerate(numbers)}
        parts = []
        for start in range(0, last - first + 1, width):
            part = Lane(lane.variable, width, min(width, last - first + 1 - start))
            bits = None
            if mask is not None:
                order = [source.get(start + k, width) for k in range(width)]
                bits = self._shuffle(mask, ir.Constant(mask.type, [_BOOL(0)] * width), order)
            address = self.pointer(buffer, first + start, runtime)
            parts.append(self._load_at(buffer, address, part, bits))
        order = [number - first for number in numbers] + [0] * (width - len(numbers))
        return self._shuffle(parts[0], parts[-1], order)

    def _shuffle(self, one: ir.Value, two: ir.Value, order: list[int]) -> ir.Value:
        """Elements of two vectors, those of the second counted from the width on."""
        integers = ir.VectorType(ir.IntType(32), len(order))
        return self.builder.shuffle_vector(one, two, ir.Constant(integers, order))

    def _load_each(
        self,
        buffer: str,
        lane: Lane,
        mask: ir.Value | None,
        places: list[tuple[int, tuple[tuple[ir.Value, int], ...]]],
    ) -> ir.Value:
        """Lane by lane. Masked lanes read element zero."""
        scalar = element_type(self.memory.buffers[buffer].dtype)
        result: ir.Value = zero(ir.VectorType(scalar, lane.width))
        for position, (number, runtime) in enumerate(places):
            if mask is not None:
                offset = INDEX(number)
                if runtime:
                    offset = self.builder.add(self.index.sum(runtime), INDEX(number))
                bit = self.builder.extract_element(mask, INDEX(position))
                offset = self.builder.select(bit, offset, INDEX(0))
                address = self.builder.gep(
                    self.memory.pointers[buffer], [offset], source_etype=scalar
                )
            else:
                address = self.pointer(buffer, number, runtime)
            element = self._load_at(buffer, address, None, None)
            result = self.builder.insert_element(result, element, INDEX(position))
        return result

    def _literal(
        self, access: Load, number: int, runtime: tuple[tuple[ir.Value, int], ...]
    ) -> ir.Value:
        if runtime:
            raise CodegenError(f"'{access}' reads a literal in a loop that is not unrolled")
        return literal(ir.FloatType(), self.memory.literals[access.buffer][number])

    def _select(self, value: Select, lane: Lane | None, mask: ir.Value | None) -> ir.Value:
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
            inner = bits if mask is None else self.builder.and_(bits, mask)
            outside = self.builder.not_(bits)
            outside = outside if mask is None else self.builder.and_(outside, mask)
            sides = [self.emit(value.then, lane, inner), self.emit(value.otherwise, lane, outside)]
            then, other = (self.splat(side, lane.width) for side in same_kind(sides))
            return self.builder.select(bits, then, other)
        return self._branch(value, lane, mask)

    def _branch(
        self, value: Select, lane: Lane | None, mask: ir.Value | None, by_lane: Condition = ()
    ) -> ir.Value:
        """A condition that is the same for all lanes: a branch, so that neither side is wasted."""
        condition = self.condition(value.condition)
        then = Select(by_lane, value.then, value.otherwise) if by_lane else value.then
        if isinstance(condition, bool):
            return self.emit(then if condition else value.otherwise, lane, mask)
        width = lane.width if lane else 0
        with self.builder.if_else(condition) as (yes, no):
            with yes:
                self.index.push()
                one = self.emit(then, lane, mask)
                one = self.splat(one, width) if width else one
                self.index.pop()
                from_one = self.builder.block
            with no:
                self.index.push()
                two = self.emit(value.otherwise, lane, mask)
                two = self.splat(two, width) if width else two
                self.index.pop()
                from_two = self.builder.block
        one, two = same_kind([one, two])
        merged = self.builder.phi(one.type)
        merged.add_incoming(one, from_one)
        merged.add_incoming(two, from_two)
        return merged

    def condition(self, condition: Condition) -> ir.Value | bool:
        """All expressions >= 0, as a bit or a bool."""
        total: ir.Value | None = None
        for expression in condition:
            value = self.index.integer(expression)
            if isinstance(value, int):
                if value < 0:
                    return False
                continue
            bit = self.builder.icmp_signed(">=", value, INDEX(0))
            total = bit if total is None else self.builder.and_(total, bit)
        return True if total is None else total

    def lane_condition(self, condition: Condition, lane: Lane) -> ir.Value:
        """All expressions >= 0, for each lane."""
        total: ir.Value | None = None
        for expression in condition:
            bits = self._lane_compare(expression, lane)
            total = bits if total is None else self.builder.and_(total, bits)
        assert total is not None
        return total

    def _lane_compare(self, expression: Expr, lane: Lane) -> ir.Value:
        narrow = ir.IntType(32)
        kind = ir.VectorType(narrow, lane.width)
        values: ir.Value
        factor = expression.coefficient(lane.variable)
        if factor is not None and factor.constant is not None:
            base = self.builder.trunc(self.index.value(expression), narrow)
            steps = ir.Constant(kind, [narrow(factor.constant * i) for i in range(lane.width)])
            values = self.builder.add(self.splat(base, lane.width), steps)
        else:
            values = ir.Constant(kind, [narrow(-1)] * lane.width)
            for position in range(lane.active):
                self.index.environment[lane.variable] = position
                element = self.builder.trunc(self.index.value(expression), narrow)
                values = self.builder.insert_element(values, element, INDEX(position))
            self.index.environment[lane.variable] = 0
        return self.builder.icmp_signed(">=", values, zero(kind))

    # -- functions ----------------------------------------------------------------------------
    def apply(self, function: str, values: list[ir.Value]) -> ir.Value:
        """A function of `scalar.FUNCTIONS` on values of one width, splatting uniform ones."""
        values = same_kind(values)
        width = max(lanes_of(v) for v in values)
        if width:
            values = [self.splat(v, width) for v in values]
        if not is_float(values[0].type):
            return self._apply_integer(function, values)
        folded = fold_multiply(function, values)
        return folded if folded is not None else self._apply_float(function, values)

    def _apply_integer(self, function: str, values: list[ir.Value]) -> ir.Value:
        builder = self.builder
        match function:
            case "add":
                return builder.add(*values)
            case "subtract":
                return builder.sub(*values)
            case "multiply":
                return builder.mul(*values)
            case "maximum" | "minimum":
                sign = ">" if function == "maximum" else "<"
                return builder.select(builder.icmp_signed(sign, *values), *values)
            case "negate":
                return builder.neg(*values)
            case _:
                raise CodegenError(f"function '{function}' has no integer code")

    def _apply_float(self, function: str, values: list[ir.Value]) -> ir.Value:
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
                return self.extreme(function, *values)
            case "negate":
                return builder.fneg(*values)
            case "greater_equal":
                bits = builder.fcmp_ordered(">=", *values)
                return builder.uitofp(bits, values[0].type)
            case "where":
                bits = builder.fcmp_unordered("!=", values[0], zero(values[0].type))
                return builder.select(bits, values[1], values[2])
            case "power":
                return math.exp(builder.fmul(values[1], math.log(values[0]), flags=FLAGS))
            case "absolute" | "sqrt" | "floor" | "ceil" | "round":
                names = {"absolute": "fabs", "round": "roundeven"}
                return math.call(f"llvm.{names.get(function, function)}", *values)
            case _:
                found: ir.Value = getattr(math, function)(*values)
                return found

    def add(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """left + right; the identity is dropped (literal transform matrices leave many zeros)."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, ir.Constant) and _is_splat(one, 0.0):
                return other
        return self.builder.fadd(left, right, flags=FLAGS)

    def extreme(self, function: str, left: ir.Value, right: ir.Value) -> ir.Value:
        """maximum / minimum as one instruction: ordered comparison and select."""
        bits = self.builder.fcmp_ordered(">" if function == "maximum" else "<", left, right)
        return self.builder.select(bits, left, right, flags=("nsz",))


def same_kind(values: list[ir.Value]) -> list[ir.Value]:
    """Literals (float32 at first) take the element type of the values they stand beside."""
    kinds = [v.type for v in values if not isinstance(v, ir.Constant)]
    if not kinds:
        return values
    scalar = kinds[0].element if isinstance(kinds[0], ir.VectorType) else kinds[0]
    return [_retyped(v, scalar) for v in values]


def _retyped(value: ir.Value, scalar: ir.Type) -> ir.Value:
    """A literal as one of `scalar` type; anything else as it is."""
    own = value.type.element if isinstance(value.type, ir.VectorType) else value.type
    if not isinstance(value, ir.Constant) or own == scalar:
        return value
    if lanes_of(value):
        numbers = [part.constant for part in value.constant]
        kind = ir.VectorType(scalar, len(numbers))
        return ir.Constant(kind, [literal(scalar, number) for number in numbers])
    return literal(scalar, value.constant)


def _is_splat(value: ir.Constant, number: float) -> bool:
    parts = value.constant if isinstance(value.constant, list) else [value]
    return all(isinstance(p, ir.Constant) and p.constant == number for p in parts)


def fold_multiply(function: str, values: list[ir.Value]) -> ir.Value | None:
    """x*0, x*1 and constant products, folded (transform matrices are full of them)."""
    if function != "multiply":
        return None
    for one, other in (values, reversed(values)):
        if isinstance(one, ir.Constant):
            if _is_splat(one, 0.0):
                return one
            if _is_splat(one, 1.0):
                return other
    return None


def _float_bytes(kind: ir.Type) -> int:
    return 8 if isinstance(kind, ir.DoubleType) else 4
