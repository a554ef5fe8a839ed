"""`layout.N(workspace, sizes)`: body N of a library whose sizes vary, laid out for some of them.

Numbers that follow from the sizes, a place for every tensor, the values of those that follow from
the sizes alone: code made of formulas, no search, no allocation. Invariant: tensors that are alive
at the same time lie in the order that was planned for the largest sizes, each where the last one
before it ends, so that they never overlap, whatever the sizes.
"""

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.performing import BYTE, NULL, WEIGHTS_POINTER, Texts
from tilesmith.capabilities.c_library.code.plan import (
    BODY_AT,
    REGION,
    TENSOR_BYTES,
    DerivedTensor,
    LibraryPlan,
    RegionBody,
)
from tilesmith.capabilities.c_library.code.running import each
from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    INDEX,
    INT32,
    POINTER,
    VOID,
    Constant,
    Function,
    Module,
    Value,
)
from tilesmith.search_space.expressions.expression import Expr


def write_layout(
    module: Module, plan: LibraryPlan, number: int, body: RegionBody, texts: Texts
) -> None:
    """Add the function to a module."""
    _Layout(module, plan, number, body, texts).write()


class _Layout:
    """Writes `layout.N(workspace, sizes)`: the bytes that a workspace of these sizes has; lays it
    out where it is not NULL."""

    def __init__(
        self, module: Module, plan: LibraryPlan, number: int, body: RegionBody, texts: Texts
    ) -> None:
        self.module, self.plan, self.body, self.texts = module, plan, body, texts
        function = Function(module, f"layout.{number}", INDEX, (POINTER, POINTER))
        function.internal = True
        self.number = number
        self.workspace, self.sizes = function.arguments
        self.builder = Builder(function.append_block("entry"))
        self.index = IndexEmitter(self.builder)

    def write(self) -> None:
        builder = self.builder
        for number, size in enumerate(self.plan.sizes):
            at = builder.gep(self.sizes, INDEX(number), INDEX)
            self.index.environment[size.name] = builder.load(at, INDEX)
        places: dict[int, Value] = {}
        total: Value = INDEX(self.plan.arena_at)
        for held in self.body.held:
            places[held.slot] = total
            for slot, distance in held.members:
                places[slot] = builder.add(total, self.index.value(distance))
            total = builder.add(total, self._aligned(self.index.value(held.nbytes)))
        total = self._groups(total, places)
        numbers = [self.index.value(number) for number in self.body.numbers]
        copies = [self._numbers_of(held) for held in self.body.held]
        with builder.if_then(builder.icmp_unsigned("!=", self.workspace, NULL)):
            self._store(numbers, places)
            for held, (offset, shape) in zip(self.body.held, copies, strict=True):
                self._fill(held, offset, shape, places[held.slot])
            builder.store(INDEX(self.number + 1), self._at(BODY_AT))
        builder._terminate(f"ret i64 {total.text}")

    def _at(self, offset: int) -> Value:
        return self.builder.gep(self.workspace, INDEX(offset), BYTE)

    def _aligned(self, value: Value) -> Value:
        builder = self.builder
        return builder.and_(builder.add(value, INDEX(63)), INDEX(-64))

    def _groups(self, first: Value, places: dict[int, Value]) -> Value:
        """Places of the groups, after what is held; returns where the last of them ends."""
        ends: list[Value] = []
        for group in self.body.groups:
            start = self._most([first, *(ends[number] for number in group.behind)])
            low = self._extreme(group.low, "min")
            base = self.builder.sub(start, low)
            for slot, distance in group.members:
                places[slot] = self.builder.add(base, self.index.value(distance))
            end = self.builder.add(base, self._extreme(group.high, "max"))
            ends.append(self._aligned(end))
        inner = {number for group in self.body.groups for number in group.behind}
        return self._most([first, *(e for n, e in enumerate(ends) if n not in inner)])

    def _extreme(self, values: Sequence[Expr], kind: str) -> Value:
        extreme = self.index.value(values[0])
        for value in values[1:]:
            other = self.index.value(value)
            less = self.builder.icmp_signed("<" if kind == "min" else ">", other, extreme)
            extreme = self.builder.select(less, other, extreme)
        return extreme

    def _most(self, values: Sequence[Value]) -> Value:
        largest = values[0]
        for value in values[1:]:
            more = self.builder.icmp_signed(">", value, largest)
            largest = self.builder.select(more, value, largest)
        return largest

    def _numbers_of(self, held: DerivedTensor) -> tuple[Value, list[Value]]:
        return self.index.value(held.offset), [self.index.value(e) for e in held.shape]

    def _store(self, numbers: Sequence[Value], places: dict[int, Value]) -> None:
        plan, builder = self.plan, self.builder
        for number, value in enumerate(numbers):
            builder.store(value, self._at(plan.numbers_at + 8 * number))
        for slot, place in places.items():
            address = builder.gep(self.workspace, place, BYTE)
            builder.store(address, self._at(plan.slots_at + 8 * slot))
        for number, tensor in enumerate(plan.ends):
            at = plan.tensors_at + TENSOR_BYTES * number
            shape = self._at(plan.numbers_at + 8 * plan.shape_number(number))
            fields = (
                (0, self.texts.text(tensor.name)), (8, self.texts.text(tensor.dtype)),
                (16, INT32(tensor.onnx_type)), (20, INT32(len(tensor.shape))), (24, shape),
                (32, numbers[plan.bytes_number(number)]),
            )  # fmt: skip
            for offset, value in fields:
                builder.store(value, self._at(at + offset))

    def _fill(self, held: DerivedTensor, offset: Value, shape: list[Value], place: Value) -> None:
        """Copy what is held from the table that it is the beginning of."""
        builder = self.builder
        weights = builder.load(Constant(POINTER, None, f"@{WEIGHTS_POINTER}"), POINTER)
        table = builder.gep(builder.gep(weights, INDEX(held.at % REGION), BYTE), offset, BYTE)
        target = builder.gep(self.workspace, place, BYTE)
        kinds = (POINTER, POINTER, INDEX, BOOL)
        move = self.module.declare("llvm.memmove.p0.p0.i64", VOID, kinds)

        def copy(axis: int, source: Value, count: Value) -> None:
            """From `axis` on; `count`: how many indices of the axes before have been done."""
            rest = held.steps[axis:]
            if len(rest) > 1 or (rest and rest[0] != held.element):
                with each(builder, shape[axis]) as number:
                    step = builder.mul(number, INDEX(rest[0]))
                    done = builder.add(builder.mul(count, shape[axis]), number)
                    copy(axis + 1, builder.gep(source, step, BYTE), done)
                return
            nbytes: Value = INDEX(held.element)
            if rest:
                nbytes = builder.mul(shape[axis], nbytes)
            where = builder.gep(target, builder.mul(count, nbytes), BYTE)
            builder.call(move, (where, source, nbytes, BOOL(0)))

        copy(0, table, INDEX(0))
