"""Loads in LLVM: an element, a vector, or lanes from anywhere.

An access is compiled once for each vector variable; where its offset moves by one element with
the lane it is a vector load, under a mask where some lanes are idle. Other patterns that stay
within two vectors (strides, reversals, repetitions) are whole loads and a shuffle; the rest go
lane by lane.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilesmith.codegen.llvm.expressions.gathers import Places, gather, offsets, places_of
from tilesmith.codegen.llvm.expressions.indexing import (
    CompiledAccess,
    IndexEmitter,
    compile_access,
    compile_index,
)
from tilesmith.codegen.llvm.expressions.registers import RegisterFile
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    FLOAT,
    INDEX,
    INT32,
    Constant,
    FloatType,
    IntType,
    Value,
    VectorType,
    lanes,
    lanes_of,
    literal,
    numbers_of,
    undefined,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type, suffix
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.ir.program import Buffer
from tilesmith.search_space.support.errors import CodegenError

_FIRST = INDEX(0)


@dataclass(frozen=True)
class Lane:
    """The vector loop around a block: its variable, vector width, and lanes really in use.

    `count`, `bits`: where it is known at run time only how many they are, that number, and which
    they are; the first always is.
    """

    variable: str
    width: int
    active: int
    count: Value | None = None
    bits: Value | None = None


@dataclass
class BufferMemory:
    """What the emitter knows of buffers: their shapes, base pointers, and who writes them."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    pointers: dict[str, Value] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    literals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class LoadEmitter:
    """Emits loads; shares builder, indices, registers and memory with the statement emitter."""

    def __init__(
        self, builder: Builder, index: IndexEmitter, registers: RegisterFile, memory: BufferMemory
    ) -> None:
        self.builder = builder
        self.index = index
        self.registers = registers
        self.memory = memory
        index.read = self._read_index
        self._compiled: dict[tuple[int, str | None], tuple[Load, CompiledAccess]] = {}

    # -- accesses -----------------------------------------------------------------------------
    def compiled(self, access: Load, lane: Lane | None) -> CompiledAccess:
        """The compiled form of an access, made once for each vector variable."""
        variable = lane.variable if lane else None
        key = (id(access), variable)  # kept with the access, so that its number stays its own
        if key not in self._compiled:
            if access.buffer not in self.memory.buffers:
                raise CodegenError(f"buffer '{access.buffer}' is used outside its allocation")
            buffer = self.memory.buffers[access.buffer]
            self._compiled[key] = (access, compile_access(access, buffer, variable))
        return self._compiled[key][1]

    def place(self, compiled: CompiledAccess) -> tuple[int, tuple[tuple[Value, int], ...]]:
        """(constant, runtime terms) of an access's offset, in elements, at lane zero."""
        return self.index.split(compiled.offset)

    def pointer(self, buffer: str, number: int, runtime: tuple[tuple[Value, int], ...]) -> Value:
        """Address of an element."""
        kind = element_type(self.memory.buffers[buffer].dtype)
        base = self.memory.pointers[buffer]
        if runtime:
            key = ("address", buffer, runtime)
            known = self.index.remembered(key)
            if known is None:
                offset = self.index.sum(runtime)
                known = self.builder.gep(base, offset, kind, inbounds=True)
                self.index.remember(key, known)
            base = known
        if not number:
            return base
        return self.builder.gep(base, INDEX(number), kind, inbounds=True)

    def _read_index(self, tensor: str, index: Any) -> Value:
        """An element of a one-dimensional integer tensor, as 64 bits."""
        fixed = isinstance(index, int)
        address = self.pointer(tensor, index if fixed else 0, () if fixed else ((index, 1),))
        value = self._load_at(tensor, address, None, None)
        return self.builder.convert("sext", value, INDEX) if value.type is not INDEX else value

    def enter_lane(self, lane: Lane | None) -> None:
        """Offsets are taken at lane zero."""
        if lane is not None:
            self.index.environment[lane.variable] = 0

    def mask(self, lane: Lane, dynamic: Value | None) -> Value | None:
        """Lanes in use as a vector of bits, or None where all are."""
        if lane.active >= lane.width:
            return dynamic
        kind = vector(BOOL, lane.width)
        fixed = lanes(kind, [int(i < lane.active) for i in range(lane.width)])
        return fixed if dynamic is None else self.both(fixed, dynamic)

    def both(self, one: Value, two: Value) -> Value:
        """The lanes that two masks have in common."""
        first, second = numbers_of(one), numbers_of(two)
        if first is None or second is None:
            return self.builder.and_(one, two)
        assert isinstance(one.type, VectorType)
        return lanes(one.type, [a & b for a, b in zip(first, second, strict=True)])

    def splat(self, value: Value, width: int) -> Value:
        """A scalar in every lane."""
        if lanes_of(value):
            return value
        assert isinstance(value.type, IntType | FloatType), f"no vectors of {value.type}"
        kind = vector(value.type, width)
        if isinstance(value, Constant) and value.number is not None:
            return literal(kind, value.number)
        key = ("splat", value, width)
        known = self.index.remembered(key)
        if known is not None:
            return known
        start = self.builder.insert_element(undefined(kind), value, _FIRST)
        order = literal(vector(INT32, width), 0)
        return self.index.remember(key, self.builder.shuffle_vector(start, undefined(kind), order))

    # -- loads --------------------------------------------------------------------------------
    def load(self, access: Load, lane: Lane | None, mask: Value | None = None) -> Value:
        """An element, or a vector of them."""
        compiled = self.compiled(access, lane)
        if compiled.stride is None:
            return self._load_lanes(access, lane, mask)
        number, runtime = self.place(compiled)
        if access.buffer in self.memory.literals:
            return self._literal(access, number, runtime)
        if access.buffer in self.registers:
            along = lane.width if lane and compiled.stride else 0
            return self.registers.load(access.buffer, number, along, runtime)
        vector = lane is not None and compiled.stride == 1
        if lane is not None and compiled.stride == 0 and mask is lane.bits:
            mask = None
        if lane is not None and (
            compiled.stride not in (0, 1) or (mask is not None and not vector)
        ):
            return self._load_lanes(access, lane, mask)
        shape = (lane.width, lane.active, mask) if vector and lane else None
        key = ("load", access.buffer, number, runtime, shape)
        whole = mask is None or (lane is not None and mask is lane.bits)
        fixed = access.buffer not in self.memory.written and whole
        known = self.index.remembered(key) if fixed else None
        if known is not None:
            return known
        address = self.pointer(access.buffer, number, runtime)
        loaded = self._load_at(access.buffer, address, lane if vector else None, mask)
        return self.index.remember(key, loaded) if fixed else loaded

    def _load_at(self, buffer: str, address: Value, lane: Lane | None, mask: Value | None) -> Value:
        scalar = element_type(self.memory.buffers[buffer].dtype)
        size = scalar.width // 8
        if lane is None:
            return self.builder.load(address, scalar, size)
        kind = vector(scalar, lane.width)
        bits = self.mask(lane, mask)
        if bits is None:
            return self.builder.load(address, kind, size)
        name = f"llvm.masked.load.v{lane.width}{suffix(scalar)}.p0"
        arguments = [address, INT32(size), bits, literal(kind, 0)]
        function = self.builder.module.declare(name, kind, [value.type for value in arguments])
        return self.builder.call(function, arguments)

    def _load_lanes(self, access: Load, lane: Lane | None, mask: Value | None) -> Value:
        """Strided and irregular accesses: from a window of two vectors, or lane by lane."""
        assert lane is not None
        plain = self.compiled(access, None)
        picked = places_of(plain.offset, lane.variable)
        dtype = self.memory.buffers[access.buffer].dtype
        if picked is not None and mask is lane.bits is None and size_of(dtype) >= 4:
            return self._gather(access.buffer, picked, lane)
        places: list[tuple[int, tuple[tuple[Value, int], ...]]] = []
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

    def _gather(self, buffer: str, picked: Places, lane: Lane) -> Value:
        """Elements at places that a vector of indices names."""

        def load(tensor: str, index: Expr) -> Value:
            return self._indices(tensor, index, lane)

        distances = offsets(picked, lane.width, self.index, load, self.splat)
        base, dtype = self.memory.pointers[buffer], self.memory.buffers[buffer].dtype
        return gather(self.builder, base, dtype, distances, self.mask(lane, None))

    def _indices(self, tensor: str, index: Expr, lane: Lane) -> Value:
        """The integers of a tensor that lanes read one after the other, as 64 bits."""
        self.index.environment[lane.variable] = 0
        number, runtime = self.index.split(compile_index(index))
        address = self.pointer(tensor, number, runtime)
        indices = self._load_at(tensor, address, lane, None)
        kind = vector(INDEX, lane.width)
        return indices if indices.type is kind else self.builder.convert("sext", indices, kind)

    def _load_window(
        self,
        buffer: str,
        lane: Lane,
        mask: Value | None,
        numbers: list[int],
        runtime: tuple[tuple[Value, int], ...],
    ) -> Value:
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
                bits = self._shuffle(mask, literal(mask.type, 0), order)
            address = self.pointer(buffer, first + start, runtime)
            parts.append(self._load_at(buffer, address, part, bits))
        order = [number - first for number in numbers] + [0] * (width - len(numbers))
        return self._shuffle(parts[0], parts[-1], order)

    def _shuffle(self, one: Value, two: Value, order: list[int]) -> Value:
        """Elements of two vectors, those of the second counted from the width on."""
        return self.builder.shuffle_vector(one, two, lanes(vector(INT32, len(order)), order))

    def _load_each(
        self,
        buffer: str,
        lane: Lane,
        mask: Value | None,
        places: list[tuple[int, tuple[tuple[Value, int], ...]]],
    ) -> Value:
        """Lane by lane. Masked lanes read element zero."""
        scalar = element_type(self.memory.buffers[buffer].dtype)
        result: Value = literal(vector(scalar, lane.width), 0)
        for position, (number, runtime) in enumerate(places):
            if mask is not None:
                offset: Value = INDEX(number)
                if runtime:
                    offset = self.builder.add(self.index.sum(runtime), INDEX(number))
                bit = self.builder.extract_element(mask, INDEX(position))
                offset = self.builder.select(bit, offset, INDEX(0))
                address = self.builder.gep(self.memory.pointers[buffer], offset, scalar)
            else:
                address = self.pointer(buffer, number, runtime)
            element = self._load_at(buffer, address, None, None)
            result = self.builder.insert_element(result, element, INDEX(position))
        return result

    def _literal(self, access: Load, number: int, runtime: tuple[tuple[Value, int], ...]) -> Value:
        if runtime:
            raise CodegenError(f"'{access}' reads a literal in a loop that is not unrolled")
        return literal(FLOAT, self.memory.literals[access.buffer][number])
