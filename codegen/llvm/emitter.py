"""Statements in LLVM: one function from the body of a bound, simplified, peeled program.

Signature of an emitted function (all kernels alike, so that one driver can run any sequence):

    void name(ptr arguments, i64 thread, i64 threads, ptr barrier, ptr shared, ptr local)

`arguments` points at one pointer for each program parameter, and, where the program keeps sizes, at
one more to their values (i64, in the order of `Program.sizes`); `shared` is a workspace all threads
see (temporaries at the root), `local` this thread's own. Threads run the same code: a parallel loop
at the root is cut into slices, a barrier follows every root statement, and anything serial is
thread 0's.

Loops: `serial` is a real loop, `unroll` is emitted once for each iteration with a number for its
variable, `vector` sets the lanes of the block inside.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilesmith.codegen.llvm.blocks import BlockEmitter
from tilesmith.codegen.llvm.expressions.indexing import Index, IndexEmitter, elements
from tilesmith.codegen.llvm.expressions.loads import BufferMemory, Lane
from tilesmith.codegen.llvm.expressions.registers import RegisterFile, vector_registers
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.functions.vector_math import VectorMath
from tilesmith.codegen.llvm.intrinsics import selection, tiles
from tilesmith.codegen.llvm.intrinsics.ahead import AheadEmitter
from tilesmith.codegen.llvm.intrinsics.dot_products import DotProductEmitter
from tilesmith.codegen.llvm.intrinsics.tiles import TileEmitter
from tilesmith.codegen.llvm.intrinsics.transposes import emit_tile, recognise
from tilesmith.codegen.llvm.own_copies import copied_whole
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, POINTER, VOID, Function, Module, Value, integer
from tilesmith.codegen.llvm.text.types import ALIGNMENT, element_type
from tilesmith.codegen.llvm.threads import barrier_function, export
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.hardware.instruction_set import instruction_set_of, vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.ir.lanes import most_of
from tilesmith.search_space.support.errors import CodegenError

_BYTE = integer(8)

SPARE_REGISTERS = 4
"""A tile that leaves no more is full: the loads of its steps are kept apart."""

NARROWEST = 4
"""Lanes of the shortest vector of a tail: instructions of fewer bytes save nothing."""

STACK_LIMIT = 4096
"""Bytes: a thread's buffers up to this size live on the stack, larger ones in its workspace."""


@dataclass
class ScratchSpace:
    """Bytes handed out so far, and the most ever in use."""

    used: int = 0
    peak: int = 0

    def take(self, size: int) -> int:
        """Offset of a new region of `size` bytes."""
        offset = self.used
        self.used += -(-size // ALIGNMENT) * ALIGNMENT
        self.peak = max(self.peak, self.used)
        return offset


class FunctionEmitter:
    """Emits the body of a program as the body of `function`."""

    def __init__(self, module: Module, name: str, program: ir.Program, target: Target) -> None:
        self.program = program
        instructions = instruction_set_of(target)
        self.width = width = vector_width(target)
        self.full = target.integer("vector.registers") - SPARE_REGISTERS
        self.shared = ScratchSpace()
        self.local = ScratchSpace()
        pointers = len(program.parameters) + bool(program.sizes)
        inner = (*[POINTER] * pointers, INDEX, INDEX, POINTER, POINTER, POINTER)
        self.function = Function(module, f"{name}.body", VOID, inner)
        self.function.internal = True
        # Spill slots hold whole vectors; unless the stack is aligned like them, each crosses lines.
        special = f" {instructions.function_attributes}".rstrip()
        self.function.attributes = f"noinline alignstack({ALIGNMENT}){special}"
        self.function.noalias = pointers
        entry = self.function.append_block("entry")
        body = self.function.append_block("body")
        self.entry = Builder(entry)
        self.builder = Builder(body)
        self.index = IndexEmitter(self.builder)
        self.registers = RegisterFile(self.entry, width)
        self.registers.attach(self.builder)
        self.memory = BufferMemory(
            {b.name: b for b in (*program.parameters, *program.literals)},
            {b.name: a for b, a in zip(program.parameters, self.function.arguments, strict=False)},
            frozenset(block.buffer for block in ir.blocks(program.body)),
            {b.name: b.values for b in program.literals if b.values is not None},
        )
        math = VectorMath(self.builder, instructions)
        self.values = ValueEmitter(self.builder, self.index, self.registers, self.memory, math)
        self.blocks = BlockEmitter(
            self.builder, self.index, self.registers, self.memory, self.values
        )
        self.tiles = TileEmitter(self.values, self.entry, target)
        line = target.integer("line.bytes")
        self.ahead = AheadEmitter(self.builder, self.index, self.registers, self.memory, line)
        self.dot_products = DotProductEmitter(self.values, target, width, self._lane)
        self.thread, self.threads, self.barrier, self.shared_base, self.local_base = (
            self.function.arguments[pointers:]
        )
        self._read_sizes()
        self._vector_buffers = vector_registers(program.body)
        named = {s.name for s in ir.walk(program.body) if isinstance(s, ir.Intrinsic)}
        self._narrows = "dot_product" not in named  # whose sums are whole registers
        self._root(program.body)
        self.tiles.finish()
        self.builder.ret_void()
        self.entry.branch(body)
        export(module, name, self.function, pointers)

    def _read_sizes(self) -> None:
        """Sizes are known from the beginning on."""
        self.index.varying = bool(self.program.sizes)
        for position, size in enumerate(self.program.sizes):
            values = self.function.arguments[len(self.program.parameters)]
            address = self.entry.gep(values, INDEX(position), INDEX)
            ends = (size.low, size.high + 1)
            self.index.environment[size.name] = self.entry.load_within(address, INDEX, ends)

    # -- the root: threads --------------------------------------------------------------------
    def _root(self, statement: ir.Statement) -> None:
        """Root statements one after another, each shared out over the threads."""
        copied = (
            None if isinstance(statement, ir.Sequence) else copied_whole(statement, self.program)
        )
        if copied is None or statement is self.program.body:
            self._shared_out(statement)
            return
        pointers = [self.memory.pointers[buffer.name] for buffer in copied]
        with self.builder.if_then(self.builder.icmp_unsigned("!=", *pointers)):
            self.index.push()
            self._shared_out(statement)
            self.index.pop()

    def _shared_out(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Allocate(buffer, body) if buffer.scope not in ("register", tiles.SCOPE):
                offset = self.shared.take(self._bytes(buffer))
                self._open(buffer, self.builder.gep(self.shared_base, INDEX(offset), _BYTE))
                self._root(body)
            case ir.Sequence(statements):
                for position, inner in enumerate(statements):
                    if position:
                        self._wait()
                    self._root(inner)
            case ir.Loop(_, _, "parallel"):
                self._parallel(statement)
            case ir.If() if self.program.sizes:  # decided by sizes: all threads go the same way
                self._if(statement, self._root)
            case _:
                with self.builder.if_then(
                    self.builder.icmp_signed("==", self.thread, INDEX(0)), likely=True
                ):
                    self._scoped(statement, self._emit)

    def _wait(self) -> None:
        """All threads meet (a no-op for one)."""
        many = self.builder.icmp_signed(">", self.threads, INDEX(1))
        with self.builder.if_then(many, likely=False):
            self.builder.call(barrier_function(self.builder.module), [self.barrier, self.threads])

    def _parallel(self, statement: ir.Loop) -> None:
        """Perfectly nested parallel loops become one range, cut into a slice for each thread."""
        nest = [statement]
        while isinstance(nest[-1].body, ir.Loop) and nest[-1].body.kind == "parallel":
            if nest[-1].body.extent.variables() & {loop.variable for loop in nest}:
                break
            nest.append(nest[-1].body)
        builder, total = self.builder, const(1)
        for loop in nest:
            total = total * loop.extent
        count = self.index.value(total)
        start = builder.sdiv(builder.mul(count, self.thread), self.threads)
        after = builder.add(self.thread, INDEX(1))
        stop = builder.sdiv(builder.mul(count, after), self.threads)
        with self._counter(start, stop) as position, self.ahead.inside(*nest):
            for loop in reversed(nest):
                extent = self.index.value(loop.extent)
                if loop is nest[0]:
                    self.index.environment[loop.variable] = position
                else:
                    self.index.environment[loop.variable] = builder.srem(position, extent)
                    position = builder.sdiv(position, extent)
            self._emit(nest[-1].body)

    # -- statements ---------------------------------------------------------------------------
    def _emit(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Loop(_, _, "unroll"):
                self._unroll(statement)
            case ir.Loop(_, _, "vector"):
                self._vector(statement)
            case ir.Loop():
                self._serial(statement)
            case ir.Sequence(statements):
                for inner in statements:
                    self._emit(inner)
            case ir.If():
                self._if(statement, self._emit)
            case ir.Allocate(buffer, body):
                self._allocate(buffer, body)
            case ir.Intrinsic():
                self._intrinsic(statement)
            case ir.Block():
                self.blocks.emit(statement, None)

    def _intrinsic(self, statement: ir.Intrinsic) -> None:
        """A CPU knows a few instructions; anything else is what its body says."""
        if statement.name in tiles.NAMES:
            self.tiles.emit(statement)
            return
        if statement.name in ("dot_product", "interleave") and self.dot_products.emit(statement):
            return
        selected = selection.recognise(statement) if statement.name == "select" else None
        if selected is not None and selected.key.buffer not in self.registers:
            selection.emit(selected, self.values)
            return
        tile = None
        if statement.name == "transpose":
            tile = recognise(statement, self.values, self.width, self._lane)
        if tile is None:
            self._emit(statement.body)
            return

        def store(buffer: str, address: Value, value: Value, lane: Lane) -> None:
            self.blocks.store(buffer, address, value, lane, lane.bits)

        emit_tile(tile, self.values, self.width, store)

    def _scoped(self, statement: ir.Statement, emit: Callable[[ir.Statement], None]) -> None:
        self.index.push()
        emit(statement)
        self.index.pop()

    @contextmanager
    def _counter(self, start: Value, stop: Value) -> Iterator[Value]:
        """A counted loop; yields its variable with the builder inside."""
        builder = self.builder
        before = builder.block
        head = builder.append_block("loop")
        done = builder.append_block("done")
        builder.cbranch(builder.icmp_signed("<", start, stop), head, done)
        builder.position_at_end(head)
        variable = builder.phi(INDEX)
        variable.add_incoming(start, before)
        self.index.push()
        yield variable
        self.index.pop()
        following = builder.add(variable, INDEX(1), flags="nsw nuw")
        variable.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), head, done)
        builder.position_at_end(done)

    def _serial(self, loop: ir.Loop) -> None:
        stop = self.index.value(loop.extent)
        with self._counter(INDEX(0), stop) as variable, self.ahead.inside(loop):
            self.index.environment[loop.variable] = variable
            self.ahead.emit(loop)
            self._emit(loop.body)
        del self.index.environment[loop.variable]

    def _extent(self, loop: ir.Loop) -> int:
        extent: Index | None = loop.extent.constant
        if extent is None:
            extent = self.index.integer(loop.extent)
        if not isinstance(extent, int):
            raise CodegenError(
                f"{loop.kind} loop '{loop.variable}' has the extent {loop.extent}, not a constant"
            )
        return extent

    def _unroll(self, loop: ir.Loop) -> None:
        """LLVM gathers loads of neighbouring addresses, those of one step and of the next; beside a
        full tile of accumulators there is no room for both, and most of the tile would spill."""
        apart = self.registers.occupied >= self.full and self._accumulates(loop)
        for iteration in range(self._extent(loop)):
            if apart and iteration:
                self.builder.keep_order()
            self.index.environment[loop.variable] = iteration
            self._emit(loop.body)
        self.index.environment.pop(loop.variable, None)

    def _accumulates(self, loop: ir.Loop) -> bool:
        """Whether every iteration updates the same registers."""
        return any(
            block.write.buffer in self.registers
            and not any(loop.variable in index.variables() for index in block.write.indices)
            for block in ir.blocks(loop.body)
        )

    def _vector(self, loop: ir.Loop) -> None:
        lane = self._lane(loop)
        if lane.active <= 0:
            return
        if self._narrows and lane.count is None:  # a tail costs what it computes
            width = max(NARROWEST, 1 << (lane.active - 1).bit_length())
            lane = replace(lane, width=min(width, lane.width))
        self.values.enter_lane(lane)
        for block in ir.blocks(loop.body):
            self.blocks.emit(block, lane)
        del self.index.environment[loop.variable]

    def _lane(self, loop: ir.Loop) -> Lane:
        """The lanes of a vector loop; those in use may be known at run time only."""
        count: Index | None = loop.extent.constant
        if count is not None:
            return Lane(loop.variable, max(self.width, count), count)
        count, most = self.index.integer(loop.extent), most_of(loop.extent)
        if isinstance(count, int) or most is None:
            extent = self._extent(loop)
            return Lane(loop.variable, max(self.width, extent), extent)
        width = max(self.width, most)
        key = ("lanes", count, width)
        bits = self.index.remembered(key)
        if bits is None:
            bits = self.index.remember(key, self.values.first_lanes(count, width))
        return Lane(loop.variable, width, width, count, bits)

    def _if(self, statement: ir.If, emit: Callable[[ir.Statement], None]) -> None:
        """Either side, by `emit`."""
        condition = self.values.condition(statement.condition)
        if isinstance(condition, bool):
            chosen = statement.then if condition else statement.otherwise
            if chosen is not None:
                emit(chosen)
        elif statement.otherwise is None:
            with self.builder.if_then(condition):
                self._scoped(statement.then, emit)
        else:
            with self.builder.if_else(condition) as (yes, no):
                with yes:
                    self._scoped(statement.then, emit)
                with no:
                    self._scoped(statement.otherwise, emit)

    def _allocate(self, buffer: ir.Buffer, body: ir.Statement) -> None:
        if buffer.scope == "register":
            self.registers.open(buffer, buffer.name in self._vector_buffers)
            self.memory.buffers[buffer.name] = buffer
            self._emit(body)
            self.registers.close(buffer.name)
            return
        if buffer.scope == tiles.SCOPE:
            self.tiles.open(buffer)
            self.memory.buffers[buffer.name] = buffer
            self._emit(body)
            self.tiles.close(buffer)
            return
        size = self._bytes(buffer)
        used = self.local.used
        if size <= STACK_LIMIT:
            kind = element_type(buffer.dtype)
            pointer = self.entry.alloca(kind, ALIGNMENT, elements(buffer, self.program.sizes))
        else:
            offset = INDEX(self.local.take(size))
            pointer = self.entry.gep(self.local_base, offset, _BYTE)
        self._open(buffer, pointer)
        self._emit(body)
        self.local.used = used

    def _bytes(self, buffer: ir.Buffer) -> int:
        """Memory that a buffer takes at the largest sizes."""
        return elements(buffer, self.program.sizes) * size_of(buffer.dtype)

    def _open(self, buffer: ir.Buffer, pointer: Value) -> None:
        self.memory.buffers[buffer.name] = buffer
        self.memory.pointers[buffer.name] = pointer
