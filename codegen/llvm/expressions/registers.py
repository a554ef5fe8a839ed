"""Register buffers: each element (or vector of them) is an `alloca` that LLVM makes a register.

A buffer in scope `register` is indexed by unrolled and vector variables only, so while code is
emitted every index is a number. One alloca for each element or vector is exactly what `mem2reg`
turns into SSA values and loop-carried phis: accumulators stay in registers without any work of
ours. Tails read and write the first lanes alone. Within straight-line code values are passed on
here, so that LLVM has less to read.
"""

from tilesmith.codegen.llvm.expressions.indexing import elements
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, BasicBlock, Type, Value, VectorType, vector
from tilesmith.codegen.llvm.text.types import element_type
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir.program import Allocate, Buffer, Loop, Statement, blocks, walk
from tilesmith.search_space.support.errors import CodegenError


class RegisterFile:
    """The register buffers in scope."""

    def __init__(self, entry: Builder, width: int) -> None:
        self._entry = entry
        self._width = width
        self._buffers: dict[str, Buffer] = {}
        self._vectors: set[str] = set()
        self._slots: dict[tuple[str, int], Value] = {}
        self._builder: Builder | None = None
        self._block: BasicBlock | None = None
        self._known: dict[Value, Value] = {}
        self._stores: dict[Value, int] = {}

    def attach(self, builder: Builder) -> None:
        """Use `builder` for loads and stores."""
        self._builder = builder

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    @property
    def names(self) -> frozenset[str]:
        """Buffers in scope."""
        return frozenset(self._buffers)

    @property
    def occupied(self) -> int:
        """Registers that the buffers in scope take."""
        return sum(
            -(-elements(buffer) // (self._width if name in self._vectors else 1))
            for name, buffer in self._buffers.items()
        )

    def open(self, buffer: Buffer, vector: bool) -> None:
        """Bring a buffer into scope; `vector`: its last dimension runs along vector lanes."""
        self._buffers[buffer.name] = buffer
        if vector:
            self._vectors.add(buffer.name)

    def close(self, name: str) -> None:
        """Drop a buffer; its slots are forgotten, so that a new one starts fresh."""
        del self._buffers[name]
        self._vectors.discard(name)
        self._slots = {key: slot for key, slot in self._slots.items() if key[0] != name}

    def load(
        self, name: str, number: int, along: int, runtime: tuple[tuple[Value, int], ...]
    ) -> Value:
        """Element or vector at offset `number`; `along`: lanes that the access moves with, or 0."""
        assert self._builder is not None
        slot, kind, position = self._slot(name, number, along, runtime)
        value = self._read(slot, kind)
        return value if position is None else self._builder.extract_element(value, INDEX(position))

    def store(
        self,
        name: str,
        number: int,
        along: int,
        runtime: tuple[tuple[Value, int], ...],
        value: Value,
    ) -> None:
        """Write an element or vector; an earlier store in the same basic block is pointless."""
        assert self._builder is not None
        slot, kind, position = self._slot(name, number, along, runtime)
        if position is not None:
            value = self._builder.insert_element(self._read(slot, kind), value, INDEX(position))
        self._enter()
        if slot in self._stores and self._known[slot].type is value.type:
            self._builder.drop(self._stores[slot])
        self._stores[slot] = self._builder.store(value, slot)
        self._known[slot] = value

    def _read(self, slot: Value, kind: Type) -> Value:
        """The slot's value, loaded at most once in a basic block."""
        assert self._builder is not None
        self._enter()
        known = self._known.get(slot)
        if known is None or known.type is not kind:
            self._stores.pop(slot, None)
            known = self._known[slot] = self._builder.load(slot, kind)
        return known

    def _enter(self) -> None:
        """Forget what was known in another basic block."""
        assert self._builder is not None
        if self._builder.block is not self._block:
            self._block = self._builder.block
            self._known, self._stores = {}, {}

    def _slot(
        self, name: str, number: int, along: int, runtime: tuple[tuple[Value, int], ...]
    ) -> tuple[Value, Type, int | None]:
        if runtime:
            raise CodegenError(
                f"register buffer '{name}' is indexed by a loop that is not unrolled or vector"
            )
        scalar = element_type(self._buffers[name].dtype)
        kind: Type = scalar
        position: int | None = None
        if name in self._vectors:
            kind = vector(scalar, self._width)
            if not along:
                number, position = number // self._width * self._width, number % self._width
        key = (name, number)
        if key not in self._slots:
            self._slots[key] = self._entry.alloca(kind)
        narrow = position is None and isinstance(kind, VectorType)
        return self._slots[key], vector(scalar, along) if narrow else kind, position


def vector_registers(statement: Statement) -> frozenset[str]:
    """Register buffers that are accessed along a vector lane somewhere."""
    registers = {
        s.buffer.name
        for s in walk(statement)
        if isinstance(s, Allocate) and s.buffer.scope == "register"
    }
    buffers: set[str] = set()
    for loop in walk(statement):
        if not isinstance(loop, Loop) or loop.kind != "vector":
            continue
        for block in blocks(loop.body):
            for access in (block.write, *loads(block.value)):
                moves = any(loop.variable in index.variables() for index in access.indices)
                if access.buffer in registers and moves:
                    buffers.add(access.buffer)
    return frozenset(buffers)
