"""Matrix registers: the intrinsics that make them zero, multiply into them and store them.

`tile_multiply` and `tile_multiply_whole`:

    i in rows: j in columns: q in groups: p in products:
      out[u, v, i, j] += a[.., i, q*products + p] * b[.., q, j, p]

A buffer in scope `amx` takes one register for each matrix in it; the others hold what is
multiplied, the least recently used giving way, as long as control runs straight on. Registers are
numbers in the instructions. A function that uses them begins by telling the processor their shape
(all alike) and ends by setting them free. Source: Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 1, chapter 18, and volume 2, LDTILECFG, TILELOADD, TDPBUSD.
"""

from math import prod

from tilesmith.codegen.llvm.expressions.loads import Lane
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    INDEX,
    POINTER,
    VOID,
    BasicBlock,
    Type,
    Value,
    integer,
    lanes,
    vector,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import Load, loads
from tilesmith.search_space.hardware.matrix_registers import tile_product, tiles_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.support.errors import CodegenError

SCOPE = "amx"
NAMES = frozenset({"tile_zero", "tile_multiply", "tile_multiply_whole", "tile_store"})

_BYTE = integer(8)
_CONFIGURATION = 64
"""Bytes of the operand of LDTILECFG: palette, starting row, bytes of a row and rows of each."""


class TileEmitter:
    """Gives numbers to matrix registers and writes their instructions."""

    def __init__(self, values: ValueEmitter, entry: Builder, target: Target) -> None:
        self.values, self.target = values, target
        self.builder, self._entry = values.builder, entry
        self._first: dict[str, int] = {}
        self._sums = 0
        self._operands: dict[object, int] = {}
        self._block: BasicBlock | None = None
        self.used = False

    # -- registers ----------------------------------------------------------------------------
    def open(self, buffer: ir.Buffer) -> None:
        """Registers for the matrices of a buffer.

        Raises:
            CodegenError: the target has none, or none are left.
        """
        tiles = tiles_of(self.target)
        if tiles is None:
            raise CodegenError(f"target '{self.target.name}' has no matrix registers")
        shape = [extent.constant or 0 for extent in buffer.shape]
        if shape[-2:] != [tiles.rows, tiles.row_bytes // 4]:
            raise CodegenError(f"buffer '{buffer.name}' holds no matrices of {tiles.rows} rows")
        self._first[buffer.name] = self._sums
        self._sums += prod(shape[:-2])
        if self._sums > tiles.count - 2:
            raise CodegenError(f"buffer '{buffer.name}' leaves no matrix register for operands")
        self._configure(tiles.count, tiles.rows, tiles.row_bytes)

    def close(self, buffer: ir.Buffer) -> None:
        """Its registers are free again."""
        self._sums = self._first.pop(buffer.name)
        self._operands.clear()

    def _configure(self, count: int, rows: int, row_bytes: int) -> None:
        """All registers alike, once a function, in its entry block."""
        if self.used:
            return
        self.used = True
        plan = bytearray(_CONFIGURATION)
        plan[0] = 1
        for tile in range(count):
            plan[16 + 2 * tile : 18 + 2 * tile] = row_bytes.to_bytes(2, "little")
            plan[48 + tile] = rows
        kind = vector(_BYTE, _CONFIGURATION)
        place = self._entry.alloca(_BYTE, _CONFIGURATION, _CONFIGURATION)
        self._entry.store(lanes(kind, list(plan)), place, _CONFIGURATION)
        self._call("ldtilecfg", place, builder=self._entry)

    def finish(self) -> None:
        """Release the tiles at the end of the function, if it used any."""
        if self.used:
            self._call("tilerelease")

    def _operand(self, key: object, load: tuple[Value, Value], kept: int = -1) -> int:
        """The register that holds an operand, loaded where none does; `kept` stays as it is."""
        if self.builder.block is not self._block:
            self._block = self.builder.block
            self._operands.clear()
        if key in self._operands:
            self._operands[key] = self._operands.pop(key)  # the last used
            return self._operands[key]
        tiles = tiles_of(self.target)
        assert tiles is not None
        free = set(range(self._sums, tiles.count)) - set(self._operands.values())
        if not free:
            oldest = next(k for k, number in self._operands.items() if number != kept)
            free = {self._operands.pop(oldest)}
        self._operands[key] = min(free)
        self._call("tileloadd64", _BYTE(min(free)), *load)
        return min(free)

    def _call(self, name: str, *given: Value, builder: Builder | None = None) -> None:
        builder = builder or self.builder
        kinds: list[Type] = [value.type for value in given]
        builder.call(builder.module.declare(f"llvm.x86.{name}", VOID, kinds), list(given))

    # -- instructions -------------------------------------------------------------------------
    def emit(self, statement: ir.Intrinsic) -> None:
        """One of the intrinsics, for each matrix it goes over.

        Raises:
            CodegenError: its loops are not those of the instruction.
        """
        nest: list[ir.Loop] = []
        inner = statement.body
        while isinstance(inner, ir.Loop):
            nest.append(inner)
            inner = inner.body
        if not isinstance(inner, ir.Block) or inner.guard:
            raise CodegenError(f"intrinsic '{statement.name}' holds no plain loops")
        depth = 4 if "multiply" in statement.name else 2
        self._each(nest[:-depth], nest[-depth:], inner, statement.name)

    def _each(self, outer: list[ir.Loop], inner: list[ir.Loop], block: ir.Block, name: str) -> None:
        environment = self.values.index.environment
        if outer:
            count = self.values.index.integer(outer[0].extent)
            if not isinstance(count, int):
                raise CodegenError(f"intrinsic '{name}' goes over {outer[0].extent} matrices")
            for position in range(count):
                environment[outer[0].variable] = position
                self._each(outer[1:], inner, block, name)
            environment.pop(outer[0].variable, None)
            return
        for loop in inner:
            environment[loop.variable] = 0
        if name == "tile_zero":
            self._call("tilezero", _BYTE(self._register(block.write)))
        elif name == "tile_store":
            source = _BYTE(self._register(next(loads(block.value))))
            self._call("tilestored64", source, *self._rows(block.write, inner))
        else:
            self._multiply(block, inner)
        for loop in inner:
            environment.pop(loop.variable, None)

    def _register(self, access: Load) -> int:
        """The number of the register that holds a matrix of sums."""
        compiled = self.values.compiled(access, None)
        number, runtime = self.values.place(compiled)
        if runtime or access.buffer not in self._first:
            raise CodegenError(f"'{access}' names no matrix register while code is written")
        tiles = tiles_of(self.target)
        assert tiles is not None
        return self._first[access.buffer] + number // (tiles.rows * tiles.row_bytes // 4)

    def _multiply(self, block: ir.Block, nest: list[ir.Loop]) -> None:
        row, column, group, neighbour = nest
        left, right = loads(block.value)
        dtypes = [self.values.memory.buffers[x.buffer].dtype for x in (left, right)]
        instruction = tile_product(self.target, dtypes[0], dtypes[1])
        steps = self._steps(left, group), self._steps(left, neighbour), self._steps(left, column)
        other = self._steps(right, column), self._steps(right, neighbour), self._steps(right, row)
        products = 0 if instruction is None else instruction.products
        if instruction is None or steps != (products, 1, 0) or other != (products, 1, 0):
            raise CodegenError(f"no matrix instruction for {block.value} in stage '{block.stage}'")
        sums = self._register(block.write)
        first = self._operand(self._key(left), self._rows(left, [row]))
        second = self._operand(self._key(right), self._rows(right, [group]), first)
        function = self.builder.module.declare(instruction.intrinsic, VOID, [_BYTE] * 3)
        self.builder.call(function, [_BYTE(sums), _BYTE(first), _BYTE(second)])

    def _steps(self, access: Load, loop: ir.Loop) -> int | None:
        """Elements that an access moves by with a loop."""
        lane = Lane(loop.variable, 1, 1)
        return self.values.compiled(access, lane).stride

    def _key(self, access: Load) -> object:
        return access.buffer, *self.values.place(self.values.compiled(access, None))

    def _rows(self, access: Load, nest: list[ir.Loop]) -> tuple[Value, Value]:
        """(address, bytes from row to row) of a matrix in memory; the first loop walks its rows."""
        step = self._steps(access, nest[0])
        if step is None:
            raise CodegenError(f"rows of '{access}' do not stand at equal distances")
        address = self.values.pointer(
            access.buffer, *self.values.place(self.values.compiled(access, None))
        )
        size = size_of(self.values.memory.buffers[access.buffer].dtype)
        assert address.type is POINTER
        return address, INDEX(step * size)
