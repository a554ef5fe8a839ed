"""Loads in LLVM: an element, a vector, or lanes from anywhere.

An access is compiled once for each vector variable; where its offset moves by one element with
the lane it is a vector load, under a mask where some lanes are idle. Other patterns that stay
within two vectors (strides, reversals, repetitions) are whole loads and a shuffle; the rest go
lane by lane.
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
from codegen.llvm.vector_math import intrinsic
from search_space.errors import CodegenError
from search_space.program import Buffer
from search_space.scalar import Load

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


class LoadEmitter:
    """Emits loads; shares builder, indices, registers and memory with the statement emitter."""

    def __init__(
        self, builder: ir.IRBuilder, index: IndexEmitter, registers: RegisterFile, memory: Memory
    ) -> None:
        self.builder = builder
        self.index = index
        self.registers = registers
        self.memory = memory
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

    # -- loads --------------------------------------------------------------------------------
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


def _float_bytes(kind: ir.Type) -> int:
    return 8 if isinstance(kind, ir.DoubleType) else 4
