"""Statements in LLVM: one function from one statement of a bound, simplified, peeled program.

Signature of an emitted function (all kernels alike, so that one driver can run any sequence):

    void name(ptr arguments, i64 thread, i64 threads, ptr barrier, ptr shared, ptr local)

`arguments` points at one pointer for each program parameter; `shared` is a workspace all threads see
(temporaries at the root), `local` this thread's own. Threads run the same code: a parallel loop at the
root is cut into slices, a barrier follows every root statement, and anything serial is thread 0's.

Loops: `serial` is a real loop, `unroll` is emitted once for each iteration with a number for its
variable, `vector` sets the lanes of the block inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from codegen.llvm.indexing import IndexEmitter, elements
from codegen.llvm.registers import RegisterFile
from codegen.llvm.types import (
    ALIGNMENT,
    INDEX,
    POINTER,
    VOID,
    element_type,
    is_float,
    lanes_of,
    literal,
    suffix,
)
from codegen.llvm.values import Lane, Memory, ValueEmitter
from codegen.llvm.vector_math import FLAGS, VectorMath, intrinsic
from search_space.dtypes import size_of
from search_space.errors import CodegenError
from search_space.expression import Expr, const
from search_space.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
    blocks,
    walk,
)
from search_space.scalar import REDUCERS, Call, Load, loads
from search_space.target import Target

SIGNATURE = ir.FunctionType(VOID, [POINTER, INDEX, INDEX, POINTER, POINTER, POINTER])
STACK_LIMIT = 4096
"""Bytes: a thread's buffers up to this size live on the stack, larger ones in its workspace."""


@dataclass
class Workspace:
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
    """Emits one statement as the body of `function`."""

    def __init__(
        self, module: ir.Module, name: str, program: Program, statement: Statement, target: Target
    ) -> None:
        self.program = program
        self.width = width = target.integer("vector.lanes")
        self.shared = Workspace()
        self.local = Workspace()
        inner = ir.FunctionType(
            VOID, [*[POINTER] * len(program.parameters), INDEX, INDEX, POINTER, POINTER, POINTER]
        )
        self.function = ir.Function(module, inner, f"{name}.body")
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        for argument in self.function.args[: len(program.parameters)]:
            argument.add_attribute("noalias")
        entry = self.function.append_basic_block("entry")
        body = self.function.append_basic_block("body")
        self.entry = ir.IRBuilder(entry)
        self.builder = ir.IRBuilder(body)
        self.index = IndexEmitter(self.builder)
        self.registers = RegisterFile(self.entry, width)
        self.registers.attach(self.builder)
        self.memory = Memory(
            {b.name: b for b in (*program.parameters, *program.literals)},
            {b.name: a for b, a in zip(program.parameters, self.function.args, strict=False)},
            frozenset(block.buffer for block in blocks(statement)),
            {b.name: b.values for b in program.literals if b.values is not None},
        )
        math = VectorMath(self.builder, scalef=target.text("isa.name") == "avx512")
        self.values = ValueEmitter(self.builder, self.index, self.registers, self.memory, math)
        self.thread, self.threads, self.barrier, self.shared_base, self.local_base = (
            self.function.args[len(program.parameters) :]
        )
        self._vector_buffers = _vector_registers(statement)
        self._inside_parallel = False
        self._root(statement)
        self.builder.ret_void()
        self.entry.branch(body)
        _export(module, name, self.function, len(program.parameters))

    # -- the root: threads --------------------------------------------------------------------
    def _root(self, statement: Statement) -> None:
        """Root statements one after another, each shared out over the threads."""
        match statement:
            case Allocate(buffer, body):
                offset = self.shared.take(elements(buffer) * size_of(buffer.dtype))
                self._open(buffer, self.builder.gep(
                    self.shared_base, [INDEX(offset)], source_etype=ir.IntType(8)
                ))  # fmt: skip
                self._root(body)
            case Sequence(statements):
                for position, inner in enumerate(statements):
                    if position:
                        self._wait()
                    self._root(inner)
            case Loop(_, _, "parallel"):
                self._parallel(statement)
            case _:
                with self.builder.if_then(
                    self.builder.icmp_signed("==", self.thread, INDEX(0)), likely=True
                ):
                    self._scoped(statement)

    def _wait(self) -> None:
        """All threads meet (a no-op for one)."""
        many = self.builder.icmp_signed(">", self.threads, INDEX(1))
        with self.builder.if_then(many, likely=False):
            self.builder.call(_barrier(self.builder.module), [self.barrier, self.threads])

    def _parallel(self, statement: Loop) -> None:
        """Perfectly nested parallel loops become one range, cut into a slice for each thread."""
        nest = [statement]
        while isinstance(nest[-1].body, Loop) and nest[-1].body.kind == "parallel":
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
        self._inside_parallel = True
        with self._counter(start, stop) as position:
            for loop in reversed(nest):
                extent = self.index.value(loop.extent)
                if loop is nest[0]:
                    self.index.environment[loop.variable] = position
                else:
                    self.index.environment[loop.variable] = builder.srem(position, extent)
                    position = builder.sdiv(position, extent)
            self._emit(nest[-1].body)
        self._inside_parallel = False

    # -- statements ---------------------------------------------------------------------------
    def _emit(self, statement: Statement) -> None:
        match statement:
            case Loop(_, _, "unroll"):
                self._unroll(statement)
            case Loop(_, _, "vector"):
                self._vector(statement)
            case Loop():
                self._serial(statement)
            case Sequence(statements):
                for inner in statements:
                    self._emit(inner)
            case If():
                self._if(statement)
            case Allocate(buffer, body):
                self._allocate(buffer, body)
            case Intrinsic(_, body):
                self._emit(body)
            case Block():
                self._block(statement, None)

    def _scoped(self, statement: Statement) -> None:
        self.index.push()
        self._emit(statement)
        self.index.pop()

    @contextmanager
    def _counter(self, start: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
        """A counted loop; yields its variable with the builder inside."""
        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("loop")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("<", start, stop), head, done)
        builder.position_at_end(head)
        variable = builder.phi(INDEX)
        variable.add_incoming(start, before)
        self.index.push()
        yield variable
        self.index.pop()
        following = builder.add(variable, INDEX(1), flags=("nsw", "nuw"))
        variable.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), head, done)
        builder.position_at_end(done)

    def _serial(self, loop: Loop) -> None:
        stop = self.index.value(loop.extent)
        with self._counter(INDEX(0), stop) as variable:
            self.index.environment[loop.variable] = variable
            self._emit(loop.body)
        del self.index.environment[loop.variable]

    def _extent(self, loop: Loop) -> int:
        extent = self.index.integer(loop.extent)
        if not isinstance(extent, int):
            raise CodegenError(
                f"{loop.kind} loop '{loop.variable}' has the extent {loop.extent}, not a constant"
            )
        return extent

    def _unroll(self, loop: Loop) -> None:
        for iteration in range(self._extent(loop)):
            self.index.environment[loop.variable] = iteration
            self._emit(loop.body)
        self.index.environment.pop(loop.variable, None)

    def _vector(self, loop: Loop) -> None:
        extent = self._extent(loop)
        if extent <= 0:
            return
        lane = Lane(loop.variable, max(self.width, extent), extent)
        self.values.enter_lane(lane)
        for block in blocks(loop.body):
            self._block(block, lane)
        del self.index.environment[loop.variable]

    def _if(self, statement: If) -> None:
        condition = self.values.condition(statement.condition)
        if isinstance(condition, bool):
            chosen = statement.then if condition else statement.otherwise
            if chosen is not None:
                self._emit(chosen)
        elif statement.otherwise is None:
            with self.builder.if_then(condition):
                self._scoped(statement.then)
        else:
            with self.builder.if_else(condition) as (yes, no):
                with yes:
                    self._scoped(statement.then)
                with no:
                    self._scoped(statement.otherwise)

    def _allocate(self, buffer: Buffer, body: Statement) -> None:
        if buffer.scope == "register":
            self.registers.open(buffer, buffer.name in self._vector_buffers)
            self.memory.buffers[buffer.name] = buffer
            self._emit(body)
            self.registers.close(buffer.name)
            return
        size = elements(buffer) * size_of(buffer.dtype)
        used = self.local.used
        if size <= STACK_LIMIT:
            kind = ir.ArrayType(element_type(buffer.dtype), elements(buffer))
            pointer = self.entry.alloca(kind)
            pointer.align = ALIGNMENT
            pointer.type = POINTER  # llvmlite types it; vectors of any length are stored there
        else:
            offset = INDEX(self.local.take(size))
            pointer = self.entry.gep(self.local_base, [offset], source_etype=ir.IntType(8))
        self._open(buffer, pointer)
        self._emit(body)
        self.local.used = used

    def _open(self, buffer: Buffer, pointer: ir.Value) -> None:
        self.memory.buffers[buffer.name] = buffer
        self.memory.pointers[buffer.name] = pointer

    # -- blocks -------------------------------------------------------------------------------
    def _block(self, block: Block, lane: Lane | None) -> None:
        uniform: list[Expr] = []
        by_lane: list[Expr] = []
        for expression in block.guard:
            varies = lane is not None and lane.variable in expression.variables()
            (by_lane if varies else uniform).append(expression)
        condition = self.values.condition(tuple(uniform))
        if condition is False:
            return
        mask = self.values.lane_condition(tuple(by_lane), lane) if lane and by_lane else None
        if condition is True:
            self._write(block, lane, mask)
            return
        with self.builder.if_then(condition):
            self.index.push()
            self._write(block, lane, mask)
            self.index.pop()

    def _write(self, block: Block, lane: Lane | None, mask: ir.Value | None) -> None:
        target = self.values.compiled(block.write, lane)
        along = lane is not None and target.stride == 1
        scattered = lane is not None and target.stride not in (0, 1)
        if block.reducer is not None and not along and lane is not None and not scattered:
            value = self._horizontal(block, lane, mask)
        elif block.reducer is not None:
            value = self._reduce(block, lane, mask)
        else:
            value = self.values.emit(block.value, lane, mask)
        value = self._convert(value, block.buffer)
        if scattered and lane is not None:
            self._scatter(block, lane, mask, value)
            return
        number, runtime = self.values.place(target)
        if block.buffer in self.registers:
            value = self.values.splat(value, lane.width) if along and lane else self._first(value)
            self.registers.store(block.buffer, number, along, runtime, value)
            return
        address = self.values.pointer(block.buffer, number, runtime)
        self._store(block.buffer, address, value, lane if along else None, mask)

    def _convert(self, value: ir.Value, buffer: str) -> ir.Value:
        """Literals are float32 until they meet a buffer of another type."""
        kind = element_type(self.memory.buffers[buffer].dtype)
        if isinstance(value, ir.Constant) and not lanes_of(value) and value.type != kind:
            return literal(kind, value.constant)
        return value

    def _first(self, value: ir.Value) -> ir.Value:
        return self.builder.extract_element(value, INDEX(0)) if lanes_of(value) else value

    def _store(
        self,
        buffer: str,
        address: ir.Value,
        value: ir.Value,
        lane: Lane | None,
        mask: ir.Value | None,
    ) -> None:
        size = size_of(self.memory.buffers[buffer].dtype)
        if lane is None:
            self.builder.store(self._first(value), address, align=size)
            return
        value = self.values.splat(value, lane.width)
        bits = self.values.mask(lane, mask)
        if bits is None:
            self.builder.store(value, address, align=size)
            return
        scalar = value.type.element
        name = f"llvm.masked.store.v{lane.width}{suffix(scalar)}.p0"
        align = ir.IntType(32)
        arguments = [value.type, address.type, align, bits.type]
        function = intrinsic(self.builder.module, name, VOID, arguments)
        self.builder.call(function, [value, address, align(size), bits])

    def _scatter(self, block: Block, lane: Lane, mask: ir.Value | None, value: ir.Value) -> None:
        """Lane by lane: strided and irregular stores."""
        plain = self.values.compiled(block.write, None)
        value = self.values.splat(value, lane.width)
        for position in range(lane.active):
            self.index.environment[lane.variable] = position
            number, runtime = self.values.place(plain)
            address = self.values.pointer(block.buffer, number, runtime)
            element = self.builder.extract_element(value, INDEX(position))
            if mask is None:
                self._store(block.buffer, address, element, None, None)
                continue
            with self.builder.if_then(self.builder.extract_element(mask, INDEX(position))):
                self.index.push()
                self._store(block.buffer, address, element, None, None)
                self.index.pop()
        self.index.environment[lane.variable] = 0

    # -- reductions ---------------------------------------------------------------------------
    def _reduce(self, block: Block, lane: Lane | None, mask: ir.Value | None) -> ir.Value:
        """old `reducer` value; a sum of a product is one fused multiply-add."""
        old = self.values.load(Load(block.buffer, block.indices), lane, mask)
        value = block.value
        if not is_float(old.type):
            return self._combine(block.reducer or "sum", old, self.values.emit(value, lane, mask))
        if block.reducer == "sum" and isinstance(value, Call) and value.function == "multiply":
            left, right = (self.values.emit(a, lane, mask) for a in value.arguments)
            return self._multiply_add(left, right, old)
        return self._combine(block.reducer or "sum", old, self.values.emit(value, lane, mask))

    def _multiply_add(self, left: ir.Value, right: ir.Value, old: ir.Value) -> ir.Value:
        product = self.values.apply("multiply", [left, right])
        folded = isinstance(product, ir.Constant) or product in (left, right)
        width = max(lanes_of(left), lanes_of(right), lanes_of(old))
        if folded:
            return self._combine("sum", old, product)
        if isinstance(product, ir.Instruction):
            self.builder.remove(product)
        parts = [self.values.splat(v, width) if width else v for v in (left, right, old)]
        return self.values.math.fma(*parts)

    def _combine(self, reducer: str, old: ir.Value, value: ir.Value) -> ir.Value:
        width = max(lanes_of(old), lanes_of(value))
        if width:
            old, value = self.values.splat(old, width), self.values.splat(value, width)
        name = {"sum": "add", "max": "maximum", "min": "minimum", "product": "multiply"}[reducer]
        return self.values.apply(name, [value, old])

    def _horizontal(self, block: Block, lane: Lane, mask: ir.Value | None) -> ir.Value:
        """Reduce over the lanes, then into the element."""
        reducer = block.reducer or "sum"
        value = self.values.splat(self.values.emit(block.value, lane, mask), lane.width)
        bits = self.values.mask(lane, mask)
        if bits is not None:
            identity = literal(value.type, REDUCERS[reducer])
            value = self.builder.select(bits, value, identity)
        names = {"sum": "fadd", "product": "fmul", "max": "fmax", "min": "fmin"}
        scalar = value.type.element
        if isinstance(scalar, ir.IntType):
            names = {"sum": "add", "product": "mul", "max": "smax", "min": "smin"}
        name = f"llvm.vector.reduce.{names[reducer]}.v{lane.width}{suffix(scalar)}"
        if isinstance(scalar, ir.IntType):
            function = intrinsic(self.builder.module, name, scalar, [value.type])
            total = self.builder.call(function, [value])
        elif reducer in ("sum", "product"):
            function = intrinsic(self.builder.module, name, scalar, [scalar, value.type])
            start = literal(scalar, REDUCERS[reducer])
            total = self.builder.call(function, [start, value], fastmath=("reassoc", *FLAGS))
        else:
            function = intrinsic(self.builder.module, name, scalar, [value.type])
            total = self.builder.call(function, [value], fastmath=("nnan", "nsz"))
        old = self._first(self.values.load(Load(block.buffer, block.indices), None))
        return self._combine(reducer, old, total)


def _vector_registers(statement: Statement) -> frozenset[str]:
    """Register buffers that are accessed along a vector lane somewhere."""
    registers = {
        s.buffer.name
        for s in walk(statement)
        if isinstance(s, Allocate) and s.buffer.scope == "register"
    }
    found: set[str] = set()
    for loop in walk(statement):
        if not isinstance(loop, Loop) or loop.kind != "vector":
            continue
        for block in blocks(loop.body):
            for access in (block.write, *loads(block.value)):
                moves = any(loop.variable in index.variables() for index in access.indices)
                if access.buffer in registers and moves:
                    found.add(access.buffer)
    return frozenset(found)


def _export(module: ir.Module, name: str, body: ir.Function, parameters: int) -> None:
    """The function callers see: unpacks the argument pointers."""
    function = ir.Function(module, SIGNATURE, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    arguments = []
    for position in range(parameters):
        slot = builder.gep(function.args[0], [INDEX(position)], source_etype=POINTER)
        arguments.append(builder.load(slot, typ=POINTER))
    builder.call(body, [*arguments, *function.args[1:]])
    builder.ret_void()


def _barrier(module: ir.Module) -> ir.Function:
    """A sense-free spin barrier: two counters, {arrived, generation}, both i64, zero at first."""
    known = module.globals.get("barrier")
    if isinstance(known, ir.Function):
        return known
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER, INDEX]), "barrier")
    function.linkage = "internal"
    entry, last, spin, done = (
        function.append_basic_block(name) for name in ("entry", "last", "spin", "done")
    )
    builder = ir.IRBuilder(entry)
    arrived = function.args[0]
    generation = builder.gep(arrived, [INDEX(8)], source_etype=INDEX)
    old = builder.load_atomic(generation, "acquire", 8, typ=INDEX)
    before = builder.atomic_rmw("add", arrived, INDEX(1), "acq_rel")
    everyone = builder.icmp_signed("==", builder.add(before, INDEX(1)), function.args[1])
    builder.cbranch(everyone, last, spin)
    builder.position_at_end(last)
    builder.atomic_rmw("xchg", arrived, INDEX(0), "monotonic")
    builder.atomic_rmw("add", generation, INDEX(1), "release")
    builder.branch(done)
    builder.position_at_end(spin)
    now = builder.load_atomic(generation, "acquire", 8, typ=INDEX)
    builder.cbranch(builder.icmp_signed("==", now, old), spin, done)
    builder.position_at_end(done)
    builder.ret_void()
    return function
