"""`PREFIX_run`: what the caller gives is put where kernels find it, and results where they belong.

Kernels work in the caller's own memory where the model's tensors let them (`End.direct`) and it is
aligned as its elements are; else through the workspace. Invariant: whatever goes wrong is a status
and a sentence in the workspace; the caller's memory is read and written nowhere but in its tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tilesmith.capabilities.c_library.code.performing import BYTE, NULL, WEIGHTS_POINTER, Texts
from tilesmith.capabilities.c_library.code.plan import (
    ARENA,
    BODY_AT,
    BUSY_AT,
    REGION,
    STATUS_AT,
    TEAM_AT,
    TEXT_AT,
    THREADS_AT,
    WEIGHTS,
    End,
    LibraryPlan,
    RegionBody,
)
from tilesmith.capabilities.c_library.code.status import CODES
from tilesmith.codegen.llvm.functions.narrow import Narrow
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    FLOAT,
    INDEX,
    INT32,
    POINTER,
    VOID,
    Constant,
    Function,
    IntType,
    Module,
    NarrowFloat,
    Type,
    Value,
)
from tilesmith.codegen.llvm.text.types import element_type
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.instruction_set import instruction_set_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import CodegenError

FAULT = (POINTER, INT32, POINTER, POINTER, INDEX, INDEX, INDEX, INDEX)
"""What the routine `fault` takes."""


def write_run(module: Module, plan: LibraryPlan, texts: Texts) -> None:
    """Add the function to a module, and those that check indices."""
    function = Function(module, f"{plan.prefix}_run", INT32, (POINTER, POINTER, POINTER))
    _Runner(module, plan, function, texts).write()
    stages = [stage for body in plan.bodies for stage in body.stages]
    for dtype in sorted({c.dtype for stage in stages for c in stage.checks}):
        _write_check(module, dtype)


class _Runner:
    """Writes the run."""

    def __init__(self, module: Module, plan: LibraryPlan, function: Function, texts: Texts) -> None:
        self.module, self.plan, self.texts = module, plan, texts
        self.workspace, self.inputs, self.outputs = function.arguments
        self.builder = Builder(function.append_block("entry"))
        self.function = function

    def write(self) -> None:
        plan, builder = self.plan, self.builder
        argument = INT32(CODES["ARGUMENT"])
        self._refuse_null(self.workspace, argument)
        self._take()
        self.end = self.function.append_block("end")
        self._clear()
        if plan.sizes:
            chosen = builder.load(self._at(BODY_AT), INDEX)
            for number, body in enumerate(plan.bodies):
                with builder.if_then(self._equal(chosen, INDEX(number + 1))):
                    self._body(body)
                    builder.branch(self.end)
            with builder.if_then(self._equal(chosen, INDEX(0))):
                self._fail("SIZES", "no sizes are set; call %s first", f"{plan.prefix}_resize")
        else:
            self._body(plan.bodies[0])
        if not builder.block.is_terminated:
            builder.branch(self.end)
        builder.position_at_end(self.end)
        status = builder.load(self._at(STATUS_AT), INT32)
        builder.block.lines.append(
            f"  store atomic i32 0, ptr {self._at(BUSY_AT).text} release, align 4"
        )
        self._return(status)

    def _body(self, body: RegionBody) -> None:
        """What is run at the sizes of a region."""
        self.body = body
        given = [self._given(self.inputs, n, n, end) for n, end in enumerate(body.inputs)]
        first = len(given)
        given += [
            self._given(self.outputs, n, first + n, end) for n, end in enumerate(body.outputs)
        ]
        self._refuse_overlaps()
        used = [
            self._placed(number, end, pointer)
            for number, (end, pointer) in enumerate(zip(body.ends, given, strict=True))
        ]
        for target, source, nbytes in body.first:
            self._move(self._place(target), self._place(source), self._number(nbytes))
        self._perform()
        self._go_on()
        self._results(given, used)

    # -- pieces -----------------------------------------------------------------------------------
    def _at(self, offset: int) -> Value:
        return self.builder.gep(self.workspace, INDEX(offset), BYTE)

    def _return(self, value: Value) -> None:
        self.builder._terminate(f"ret i32 {value.text}")

    def _number(self, number: int) -> Value:
        """One of the body's numbers."""
        return self.builder.load(self._at(self.plan.numbers_at + 8 * number), INDEX)

    def _nbytes(self, end: int) -> Value:
        if not self.plan.sizes:
            return INDEX(self.body.ends[end].tensor.nbytes)
        return self._number(self.plan.bytes_number(end))

    def _elements(self, end: int) -> Value:
        if not self.plan.sizes:
            return INDEX(self.body.ends[end].tensor.elements)
        return self._number(self.plan.bytes_number(end) + len(self.body.ends))

    def _refuse_null(self, pointer: Value, status: Value) -> None:
        with self.builder.if_then(self._equal(pointer, NULL), likely=False):
            self._return(status)

    def _equal(self, one: Value, two: Value) -> Value:
        return self.builder.icmp_unsigned("==", one, two)

    def _take(self) -> None:
        """The workspace is this run's until it ends."""
        builder = self.builder
        before = builder.atomic_rmw("xchg", self._at(BUSY_AT), INT32(1), "acquire")
        with builder.if_then(builder.icmp_signed("!=", before, INT32(0)), likely=False):
            self._return(INT32(CODES["BUSY"]))

    def _clear(self) -> None:
        self.builder.store(INT32(0), self._at(STATUS_AT))
        self.builder.store(BYTE(0), self._at(TEXT_AT))

    def _fail(self, code: str, sentence: str, name: str) -> None:
        """Leave with a sentence."""
        fault = self.module.declare("fault", VOID, FAULT)
        given = (INT32(CODES[code]), self.texts.text(sentence), self.texts.text(name))
        self.builder.call(fault, (self.workspace, *given, *[INDEX(0)] * 4))
        self.builder.branch(self.end)

    def _given(self, table: Value, number: int, end: int, what: End) -> Value:
        """The caller's pointer; not null where something is there to read or write."""
        builder = self.builder
        kind = "inputs" if table is self.inputs else "outputs"
        if number == 0:
            with builder.if_then(self._equal(table, NULL), likely=False):
                self._fail("ARGUMENT", "the array of %s is NULL", kind)
        pointer = builder.load(builder.gep(table, INDEX(number), POINTER), POINTER)
        if what.updates < 0 and what.tensor.most_bytes(self.body.region):
            bad = self._equal(pointer, NULL)
            if self.plan.sizes:
                some = builder.icmp_signed("!=", self._nbytes(end), INDEX(0))
                bad = builder.and_(bad, some)
            with builder.if_then(bad, likely=False):
                self._fail("ARGUMENT", f"{kind[:-1]} '%s' is NULL", what.tensor.name)
        return pointer

    def _refuse_overlaps(self) -> None:
        """Outputs that lie in inputs, or in each other, would change what is still to be read."""
        builder = self.builder
        kinds = (POINTER, POINTER, POINTER, POINTER)
        refuse = self.module.declare("refuse_overlaps", VOID, kinds)
        if self.plan.sizes:
            known = self._at(self.plan.numbers_at + 8 * self.plan.bytes_number(0))
        else:
            sizes = [0 if end.updates >= 0 else end.tensor.nbytes for end in self.body.ends]
            known = self.texts.numbers(sizes or [0])
        builder.call(refuse, (self.workspace, self.inputs, self.outputs, known))
        self._go_on()

    def _go_on(self) -> None:
        """Only if nothing is wrong so far."""
        builder = self.builder
        status = builder.load(self._at(STATUS_AT), INT32)
        well = builder.append_block("well")
        builder.cbranch(builder.icmp_signed("==", status, INT32(0)), well, self.end, likely=True)
        builder.position_at_end(well)

    def _place(self, address: int) -> Value:
        """Where an address is: in the workspace, or among the weights."""
        region, offset = divmod(address, REGION)
        if region == WEIGHTS:
            base = self.builder.load(Constant(POINTER, None, f"@{WEIGHTS_POINTER}"), POINTER)
            return self.builder.gep(base, INDEX(offset), BYTE)
        if region >= self.plan.first_slot:
            at = self.plan.slots_at + 8 * (region - self.plan.first_slot)
            return self.builder.gep(self.builder.load(self._at(at), POINTER), INDEX(offset), BYTE)
        assert region == ARENA, f"a tensor lives in region {region}"
        return self._at(self.plan.arena_at + offset)

    def _placed(self, number: int, end: End, pointer: Value) -> Value:
        """What kernels are told, and the caller's values there."""
        if not end.home:
            return pointer
        builder, is_input = self.builder, number < len(self.body.inputs)
        home = self._place(end.home)
        used = home
        if end.direct:
            number_ = builder.convert("ptrtoint", pointer, INDEX)
            low = builder.and_(number_, INDEX(size_of(end.tensor.dtype) - 1))
            fits = builder.icmp_signed("==", low, INDEX(0))
            used = builder.select(fits, pointer, home)
        if is_input:
            with builder.if_then(builder.icmp_unsigned("!=", used, pointer)):
                stored = end.stored or end.tensor.dtype
                self._copy(home, stored, pointer, end.tensor.dtype, number)
        builder.store(used, self._at(self.plan.ends_at + 8 * number))
        return used

    def _copy(self, target: Value, to: str, source: Value, of: str, end: int) -> None:
        """Values of a tensor to another place, perhaps as another element type."""
        if to == of:
            self._move(target, source, self._nbytes(end))
            return
        convert = _conversion(self.module, of, to, self.plan.target)
        self.builder.call(convert, (target, source, self._elements(end)))

    def _move(self, target: Value, source: Value, nbytes: Value) -> None:
        kinds = (POINTER, POINTER, INDEX, BOOL)
        copy = self.module.declare("llvm.memmove.p0.p0.i64", VOID, kinds)
        self.builder.call(copy, (target, source, nbytes, BOOL(0)))

    def _perform(self) -> None:
        builder = self.builder
        if self.plan.team == 1:
            function = self.module.functions["perform"]
            builder.call(function, (self.workspace, INDEX(0), INDEX(1)))
            return
        threads = builder.load(self._at(THREADS_AT), INDEX)
        elsewhere = self.module.declare("elsewhere", INT32, (POINTER, INDEX))
        gone = builder.call(elsewhere, (self.workspace, threads))
        with builder.if_then(builder.icmp_signed("!=", gone, INT32(0)), likely=False):
            sentence = "the threads of this workspace are those of another process; make one here%s"
            self._fail("THREADS", sentence, "")
        place = self.module.declare("place", VOID, (POINTER, INDEX))
        builder.call(place, (self.workspace, threads))
        together = self.module.declare("together", VOID, (POINTER, INDEX, POINTER))
        builder.call(together, (self._at(TEAM_AT), threads, self.workspace))

    def _results(self, given: list[Value], used: list[Value]) -> None:
        builder, body = self.builder, self.body
        first = len(body.inputs)
        for number, end in enumerate(body.outputs):
            pointer = given[first + number]
            source = used[end.source] if end.source >= 0 else used[first + number]
            stored = end.stored or end.tensor.dtype
            if end.source >= 0:
                source, stored = given[end.source], end.tensor.dtype
            if end.updates >= 0:
                updated = given[end.updates]
                with builder.if_then(builder.icmp_unsigned("!=", source, updated)):
                    self._copy(updated, end.tensor.dtype, source, stored, first + number)
                asked = builder.icmp_unsigned("!=", pointer, NULL)
                other = builder.icmp_unsigned("!=", pointer, updated)
                with builder.if_then(builder.and_(asked, other)):
                    self._copy(pointer, end.tensor.dtype, source, stored, first + number)
                continue
            with builder.if_then(builder.icmp_unsigned("!=", source, pointer)):
                self._copy(pointer, end.tensor.dtype, source, stored, first + number)


@contextmanager
def each(builder: Builder, count: Value) -> Iterator[Value]:
    """What is written inside runs for each number from 0 to below `count`."""
    before, head = builder.block, builder.append_block("head")
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(INDEX)
    number.add_incoming(INDEX(0), before)
    body, done = builder.append_block("body"), builder.append_block("done")
    builder.cbranch(builder.icmp_signed("<", number, count), body, done)
    builder.position_at_end(body)
    yield number
    number.add_incoming(builder.add(number, INDEX(1)), builder.block)
    builder.branch(head)
    builder.position_at_end(done)


def _write_check(module: Module, dtype: str) -> None:
    """`check.T(workspace, indices, count, extents, axes, node)`: an index of an axis with so many
    entries is from -entries to entries - 1; the first one that is not becomes a sentence."""
    kinds = (POINTER, POINTER, INDEX, POINTER, INDEX, POINTER)
    module.functions.pop(f"check.{dtype}", None)
    function = Function(module, f"check.{dtype}", VOID, kinds)
    function.internal = True
    workspace, indices, count, extents, axes, node = function.arguments
    builder, kind = Builder(function.append_block("entry")), element_type(dtype)
    assert isinstance(kind, IntType), f"indices of {dtype}"
    with each(builder, count) as i:
        index = builder.load(builder.gep(indices, i, kind), kind, size_of(dtype))
        if kind.width < INDEX.width:
            index = builder.convert("sext" if kind.sign == "signed" else "zext", index, INDEX)
        extent = builder.load(builder.gep(extents, builder.urem(i, axes), INDEX), INDEX)
        low = builder.icmp_signed("<", index, builder.sub(INDEX(0), extent))
        bad = builder.or_(low, builder.icmp_signed(">=", index, extent))
        with builder.if_then(bad, likely=False):
            fault = module.declare("index_fault", VOID, (POINTER, POINTER, INDEX, INDEX))
            builder.call(fault, (workspace, node, index, extent))
            builder.ret_void()
    builder.ret_void()


def _conversion(module: Module, of: str, to: str, target: Target) -> Function:
    """`convert.A.B(target, source, count)`: elements of one type as those of another."""
    name = f"convert.{of}.{to}"
    known = module.functions.get(name)
    if known is not None:
        return known
    function = Function(module, name, VOID, (POINTER, POINTER, INDEX))
    function.internal = True
    to_at, from_at, count = function.arguments
    builder = Builder(function.append_block("entry"))
    with each(builder, count) as i:
        before, after = element_type(of), element_type(to)
        value = builder.load(builder.gep(from_at, i, before), before, size_of(of))
        converted = _converted(Narrow(builder, instruction_set_of(target)), value, after, (of, to))
        builder.store(converted, builder.gep(to_at, i, after), size_of(to))
    builder.ret_void()
    return function


def _converted(narrow: Narrow, value: Value, kind: Type, names: tuple[str, str]) -> Value:
    if isinstance(value.type, NarrowFloat):
        value = narrow.widened(value)
    if value.type is kind:
        return value
    if isinstance(kind, NarrowFloat) and value.type is FLOAT:
        return narrow.rounded(value, kind)
    raise CodegenError(f"libraries do not convert {names[0]} to {names[1]}")
