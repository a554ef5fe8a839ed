"""Register buffers: each element (or vector of them) is an `alloca` that LLVM makes a register.

A buffer in scope `register` is indexed by unrolled and vector variables only, so while code is
emitted every index is a number. One alloca for each element or vector is exactly what `mem2reg`
turns into SSA values and loop-carried phis: accumulators stay in registers without any work of
ours.
"""

from __future__ import annotations

from llvmlite import ir

from codegen.llvm.types import INDEX, element_type
from search_space.errors import CodegenError
from search_space.program import Buffer


class RegisterFile:
    """The register buffers in scope."""

    def __init__(self, entry: ir.IRBuilder, width: int) -> None:
        self._entry = entry
        self._width = width
        self._buffers: dict[str, Buffer] = {}
        self._vectors: set[str] = set()
        self._slots: dict[tuple[str, int], ir.Value] = {}
        self._builder: ir.IRBuilder | None = None

    def attach(self, builder: ir.IRBuilder) -> None:
        """Use `builder` for loads and stores."""
        self._builder = builder

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

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
        self, name: str, number: int, along: bool, runtime: tuple[tuple[ir.Value, int], ...]
    ) -> ir.Value:
        """Element or vector at offset `number`; `along`: the access moves with the lane."""
        assert self._builder is not None
        slot, kind, position = self._slot(name, number, along, runtime)
        value = self._builder.load(slot, typ=kind)
        return value if position is None else self._builder.extract_element(value, INDEX(position))

    def store(
        self,
        name: str,
        number: int,
        along: bool,
        runtime: tuple[tuple[ir.Value, int], ...],
        value: ir.Value,
    ) -> None:
        """Write an element or vector."""
        assert self._builder is not None
        slot, kind, position = self._slot(name, number, along, runtime)
        if position is not None:
            old = self._builder.load(slot, typ=kind)
            value = self._builder.insert_element(old, value, INDEX(position))
        self._builder.store(value, slot)

    def _slot(
        self, name: str, number: int, along: bool, runtime: tuple[tuple[ir.Value, int], ...]
    ) -> tuple[ir.Value, ir.Type, int | None]:
        if runtime:
            raise CodegenError(
                f"register buffer '{name}' is indexed by a loop that is not unrolled or vector"
            )
        kind = element_type(self._buffers[name].dtype)
        position: int | None = None
        if name in self._vectors:
            kind = ir.VectorType(kind, self._width)
            if not along:
                number, position = number // self._width * self._width, number % self._width
        key = (name, number)
        if key not in self._slots:
            self._slots[key] = self._entry.alloca(kind)
        return self._slots[key], kind, position
