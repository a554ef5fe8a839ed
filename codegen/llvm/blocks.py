"""Blocks in LLVM: one element, or one vector of them, computed and written.

A write is a plain store, a masked one, a scatter lane by lane, or goes to a register; a reduction
loads what is there and combines, over the lanes too where the element does not move with them.
"""

from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter
from tilesmith.codegen.llvm.expressions.loads import BufferMemory, Lane
from tilesmith.codegen.llvm.expressions.registers import RegisterFile
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.functions.vector_math import FLAGS
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.flags import from_flag, is_unsigned
from tilesmith.codegen.llvm.text.ir import (
    INDEX,
    INT32,
    VOID,
    FloatType,
    IntType,
    Value,
    VectorType,
    lanes_of,
    literal,
    numbers_of,
)
from tilesmith.codegen.llvm.text.types import element_type, is_float, suffix
from tilesmith.search_space.expressions.dtypes import size_of, widened
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import REDUCERS, REDUCTIONS, is_product
from tilesmith.search_space.ir.program import Block


class BlockEmitter:
    """Emits blocks; shares builder, indices, registers and memory with the statement emitter."""

    def __init__(
        self,
        builder: Builder,
        index: IndexEmitter,
        registers: RegisterFile,
        memory: BufferMemory,
        values: ValueEmitter,
    ) -> None:
        self.builder = builder
        self.index = index
        self.registers = registers
        self.memory = memory
        self.values = values

    def emit(self, block: Block, lane: Lane | None) -> None:
        """One block; `lane` is the vector loop around it."""
        uniform: list[Expr] = []
        by_lane: list[Expr] = []
        for expression in block.guard:
            varies = lane is not None and lane.variable in expression.variables()
            (by_lane if varies else uniform).append(expression)
        condition = self.values.condition(tuple(uniform))
        if condition is False:
            return
        mask = self.values.lane_condition(tuple(by_lane), lane) if lane and by_lane else None
        if lane is not None and lane.bits is not None:
            mask = lane.bits if mask is None else self.values.both(lane.bits, mask)
        if condition is True:
            self._write(block, lane, mask)
            return
        with self.builder.if_then(condition):
            self.index.push()
            self._write(block, lane, mask)
            self.index.pop()

    def _write(self, block: Block, lane: Lane | None, mask: Value | None) -> None:
        target = self.values.compiled(block.write, lane)
        along = lane is not None and target.stride == 1
        scattered = lane is not None and target.stride not in (0, 1)
        if block.reducer is not None and not along and lane is not None and not scattered:
            value = self._horizontal(block, lane, mask)
        elif block.reducer is not None:
            value = self._reduce(block, lane, mask)
        else:
            value = self.values.emit(block.value, lane, mask)
        value = self.values.stored(value, block.buffer)
        if scattered and lane is not None:
            self._scatter(block, lane, mask, value)
            return
        number, runtime = self.values.place(target)
        if block.buffer in self.registers:
            value = self.values.splat(value, lane.width) if along and lane else self._first(value)
            self.registers.store(block.buffer, number, lanes_of(value), runtime, value)
            return
        address = self.values.pointer(block.buffer, number, runtime)
        self.store(block.buffer, address, value, lane if along else None, mask)

    def _added(self, block: Block, lane: Lane | None, mask: Value | None) -> Value:
        """What a reduction combines; a flag as a number of the type it is reduced in."""
        kind = element_type(widened(self.memory.buffers[block.buffer].dtype))
        return from_flag(self.builder, self.values.computed(block.value, lane, mask), kind)

    def _first(self, value: Value) -> Value:
        return self.builder.extract_element(value, INDEX(0)) if lanes_of(value) else value

    def store(
        self,
        buffer: str,
        address: Value,
        value: Value,
        lane: Lane | None,
        mask: Value | None,
    ) -> None:
        """An element, or the lanes in use of a vector."""
        size = size_of(self.memory.buffers[buffer].dtype)
        if lane is None:
            self.builder.store(self._first(value), address, size)
            return
        value = self.values.splat(value, lane.width)
        bits = self.values.mask(lane, mask)
        if bits is None:
            self.builder.store(value, address, size)
            return
        known = numbers_of(bits)
        if known is not None and sum(known) <= 1:
            self._store_one(value, address, size, known)
            return
        arguments = [value, address, INT32(size), bits]
        name = f"llvm.masked.store.v{lane.width}{suffix(_element(value))}.p0"
        kinds = [argument.type for argument in arguments]
        self.builder.call(self.builder.module.declare(name, VOID, kinds), arguments)

    def _store_one(self, value: Value, address: Value, size: int, bits: tuple[int, ...]) -> None:
        """One lane, or none. LLVM 22 makes a wider store of a masked one with one lane in use whose
        elements are the lower parts of wider ones."""
        if sum(bits):
            place, kind = INDEX(bits.index(1)), _element(value)
            address = self.builder.gep(address, place, kind, inbounds=True)
            self.builder.store(self.builder.extract_element(value, place), address, size)

    def _scatter(self, block: Block, lane: Lane, mask: Value | None, value: Value) -> None:
        """Lane by lane: strided and irregular stores."""
        plain = self.values.compiled(block.write, None)
        value = self.values.splat(value, lane.width)
        for position in range(lane.active):
            self.index.environment[lane.variable] = position
            number, runtime = self.values.place(plain)
            address = self.values.pointer(block.buffer, number, runtime)
            element = self.builder.extract_element(value, INDEX(position))
            if mask is None:
                self.store(block.buffer, address, element, None, None)
                continue
            with self.builder.if_then(self.builder.extract_element(mask, INDEX(position))):
                self.index.push()
                self.store(block.buffer, address, element, None, None)
                self.index.pop()
        self.index.environment[lane.variable] = 0

    # -- reductions ---------------------------------------------------------------------------
    def _reduce(self, block: Block, lane: Lane | None, mask: Value | None) -> Value:
        """old `reducer` value; a sum of a product is one fused multiply-add."""
        old = self.values.computed(block.write, lane, mask)
        value = block.value
        if not is_float(old.type):
            return self._combine(block.reducer or "sum", old, self._added(block, lane, mask))
        if block.reducer == "sum" and is_product(value):
            left, right = (self.values.computed(a, lane, mask) for a in value.arguments)
            folded = self.values.fold_product(value, [left, right])
            if folded is not None:
                return self._combine("sum", old, folded)
            return self._multiply_add(left, right, old)
        return self._combine(block.reducer or "sum", old, self._added(block, lane, mask))

    def _multiply_add(self, left: Value, right: Value, old: Value) -> Value:
        width = max(lanes_of(left), lanes_of(right), lanes_of(old))
        parts = [self.values.splat(v, width) if width else v for v in (left, right, old)]
        return self.values.math.fma(*parts)

    def _combine(self, reducer: str, old: Value, value: Value) -> Value:
        width = max(lanes_of(old), lanes_of(value))
        if width:
            old, value = self.values.splat(old, width), self.values.splat(value, width)
        if reducer == "max_number":
            return self.values.math.call("llvm.maxnum", value, old, flags="nnan nsz")
        return self.values.apply(REDUCTIONS[reducer].function, [value, old])

    def _horizontal(self, block: Block, lane: Lane, mask: Value | None) -> Value:
        """Reduce over the lanes, then into the element."""
        reducer = block.reducer or "sum"
        value = self.values.splat(self._added(block, lane, mask), lane.width)
        bits = self.values.mask(lane, mask)
        if bits is not None:
            identity = literal(value.type, REDUCERS[reducer])
            value = self.builder.select(bits, value, identity)
        total = self._across(reducer, value)
        old = self._first(self.values.computed(block.write, None))
        return self._combine(reducer, old, total)

    def _across(self, reducer: str, value: Value) -> Value:
        """All lanes of a vector as one element."""
        math = self.values.math
        if not is_float(value.type):
            sign = "u" if is_unsigned(value.type) else "s"
            names = {"sum": "add", "product": "mul", "max": f"{sign}max", "min": f"{sign}min"}
            return math.across(names[reducer], value)
        if reducer == "max_number":
            return math.across("fmax", value, flags="nnan nsz")
        if reducer in ("max", "min"):
            return math.extreme_across(REDUCTIONS[reducer].function, value)
        start = literal(_element(value), REDUCERS[reducer])
        name = {"sum": "fadd", "product": "fmul"}[reducer]
        return math.across(name, value, start, flags=f"reassoc {FLAGS}")


def _element(value: Value) -> IntType | FloatType:
    """The type of a vector's lanes."""
    assert isinstance(value.type, VectorType)
    return value.type.element
