"""Libraries of models whose sizes vary: the functions that set sizes, and tell what follows.

`PREFIX_resize` reads the sizes from shapes, `capabilities.c_library.code.layout` does the rest.
Invariant: a workspace whose sizes are refused stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.layout import write_layout
from tilesmith.capabilities.c_library.code.performing import BYTE, NULL, Texts
from tilesmith.capabilities.c_library.code.plan import (
    BODY_AT,
    BUSY_AT,
    CAPACITY_AT,
    STATUS_AT,
    TENSOR_BYTES,
    TEXT_AT,
    LibraryPlan,
    LibraryTensor,
)
from tilesmith.capabilities.c_library.code.running import FAULT
from tilesmith.capabilities.c_library.code.runtime import entry
from tilesmith.capabilities.c_library.code.status import CODES
from tilesmith.codegen.compiled.routines import Address, load64, routine, routines_text
from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    INDEX,
    INT32,
    POINTER,
    VOID,
    BasicBlock,
    Function,
    Module,
    Value,
)
from tilesmith.search_space.expressions.expression import Expr, as_expr
from tilesmith.search_space.expressions.sizes import Size

FUNCTIONS = ("sizes", "size", "resize", "workspace_bytes_at", "input_at", "output_at")
"""Of a library whose sizes vary, behind its prefix, besides those that all have."""


def write_sizing(module: Module, plan: LibraryPlan, texts: Texts) -> None:
    """Add the functions to a module."""
    for number, body in enumerate(plan.bodies):
        write_layout(module, plan, number, body, texts)
    _write_choice(module, plan)
    _write_bytes_at(module, plan)
    _Resizer(module, plan, texts).write()


def _write_choice(module: Module, plan: LibraryPlan) -> None:
    """`lay.out(workspace, sizes)`: the layout of the body that serves the sizes; 0 where none
    does."""
    function = Function(module, "lay.out", INDEX, (POINTER, POINTER))
    function.internal = True
    builder = Builder(function.append_block("entry"))
    workspace, sizes = function.arguments
    values = [
        builder.load(builder.gep(sizes, INDEX(number), INDEX), INDEX)
        for number in range(len(plan.sizes))
    ]
    for number, body in enumerate(plan.bodies):
        with builder.if_then(_inside(builder, values, body.region)):
            layout = module.functions[f"layout.{number}"]
            nbytes = builder.call(layout, (workspace, sizes))
            builder._terminate(f"ret i64 {nbytes.text}")
    builder._terminate("ret i64 0")


def _inside(builder: Builder, values: Sequence[Value], region: Sequence[Size]) -> Value:
    """Whether sizes are in a region."""
    inside: Value = BOOL(1)
    for value, size in zip(values, region, strict=True):
        for sign, limit in ((">=", size.low), ("<=", size.high)):
            inside = builder.and_(inside, builder.icmp_signed(sign, value, INDEX(limit)))
    return inside


def _write_bytes_at(module: Module, plan: LibraryPlan) -> None:
    """`PREFIX_workspace_bytes_at(sizes)`."""
    function = Function(module, f"{plan.prefix}_workspace_bytes_at", INDEX, (POINTER,))
    builder = Builder(function.append_block("entry"))
    (sizes,) = function.arguments
    with builder.if_then(builder.icmp_unsigned("==", sizes, NULL), likely=False):
        builder._terminate("ret i64 0")
    able = builder.call(module.declare("able", INT32, ()), ())
    with builder.if_then(builder.icmp_signed("!=", able, INT32(0)), likely=False):
        builder._terminate("ret i64 0")
    nbytes = builder.call(module.functions["lay.out"], (NULL, sizes))
    builder._terminate(f"ret i64 {nbytes.text}")


class _Resizer:
    """Writes `PREFIX_resize(workspace, shapes)`."""

    def __init__(self, module: Module, plan: LibraryPlan, texts: Texts) -> None:
        self.module, self.plan, self.texts = module, plan, texts
        function = Function(module, f"{plan.prefix}_resize", INT32, (POINTER, POINTER))
        self.workspace, self.shapes = function.arguments
        self.function, self.builder = function, Builder(function.append_block("entry"))
        self.index = IndexEmitter(self.builder)
        self.fault = module.declare("fault", VOID, FAULT)

    def write(self) -> None:
        builder, plan = self.builder, self.plan
        with builder.if_then(builder.icmp_unsigned("==", self.workspace, NULL), likely=False):
            builder._terminate(f"ret i32 {CODES['ARGUMENT']}")
        before = builder.atomic_rmw("xchg", self._at(BUSY_AT), INT32(1), "acquire")
        with builder.if_then(builder.icmp_signed("!=", before, INT32(0)), likely=False):
            builder._terminate(f"ret i32 {CODES['BUSY']}")
        self.end = self.function.append_block("end")
        builder.store(INT32(0), self._at(STATUS_AT))
        builder.store(BYTE(0), self._at(TEXT_AT))
        self.chosen = builder.alloca(INDEX, 8, len(plan.sizes))
        given = self._given()
        self._sizes(given)
        self._others(given)
        self._fit()
        builder.branch(self.end)
        self._leave(self.end)

    def _at(self, offset: int) -> Value:
        return self.builder.gep(self.workspace, INDEX(offset), BYTE)

    def _leave(self, end: BasicBlock) -> None:
        builder = self.builder
        builder.position_at_end(end)
        status = builder.load(self._at(STATUS_AT), INT32)
        busy = self._at(BUSY_AT).text
        builder.block.lines.append(f"  store atomic i32 0, ptr {busy} release, align 4")
        builder._terminate(f"ret i32 {status.text}")

    def _refuse(self, bad: Value, code: str, text: str, what: str, *numbers: Value | int) -> None:
        """Leave with a sentence if something is bad: a name, and up to four numbers in it."""
        builder = self.builder
        with builder.if_then(bad, likely=False):
            given = [INDEX(n) if isinstance(n, int) else n for n in (*numbers, 0, 0, 0, 0)[:4]]
            message = (INT32(CODES[code]), self.texts.text(text), self.texts.text(what))
            builder.call(self.fault, (self.workspace, *message, *given))
            builder.branch(self.end)

    def _given(self) -> list[Value | None]:
        """The shape of each input; None where it has no axis."""
        builder = self.builder
        none = builder.icmp_unsigned("==", self.shapes, NULL)
        self._refuse(none, "ARGUMENT", "the array of %s is NULL", "shapes")
        shapes: list[Value | None] = []
        for number, tensor in enumerate(self.plan.inputs):
            if not tensor.shape:
                shapes.append(None)
                continue
            shape = builder.load(builder.gep(self.shapes, INDEX(number), POINTER), POINTER)
            none = builder.icmp_unsigned("==", shape, NULL)
            self._refuse(none, "ARGUMENT", "the shape of input '%s' is NULL", tensor.name)
            shapes.append(shape)
        return shapes

    def _extents(
        self, given: list[Value | None], *, plain: bool
    ) -> list[tuple[LibraryTensor, int, Expr, Value]]:
        """Axes that are sizes, or the others: input, axis, what it is, the place of its extent."""
        names = {size.name for size in self.plan.sizes}
        return [
            (tensor, axis, as_expr(extent), self.builder.gep(shape, INDEX(axis), INDEX))
            for tensor, shape in zip(self.plan.inputs, given, strict=True)
            for axis, extent in enumerate(tensor.shape)
            if shape is not None and (str(extent) in names) == plain
        ]

    def _sizes(self, given: list[Value | None]) -> None:
        """Sizes, from the axes that are just that."""
        builder = self.builder
        sizes = {size.name: (number, size) for number, size in enumerate(self.plan.sizes)}
        known = self.index.environment
        for tensor, axis, extent, at in self._extents(given, plain=True):
            number, size = sizes[str(extent)]
            value = builder.load(at, INDEX)
            if size.name in known:
                self._expect(tensor, axis, value, known[size.name])
                continue
            low = builder.icmp_signed("<", value, INDEX(size.low))
            bad = builder.or_(low, builder.icmp_signed(">", value, INDEX(size.high)))
            text = f"input '%s': axis %lld ({size.name}) is %lld; it may be %lld to %lld"
            self._refuse(bad, "SIZES", text, tensor.name, axis, value, size.low, size.high)
            known[size.name] = value
            builder.store(value, builder.gep(self.chosen, INDEX(number), INDEX))

    def _others(self, given: list[Value | None]) -> None:
        """All other axes are as the sizes have them."""
        for tensor, axis, extent, at in self._extents(given, plain=False):
            value = self.builder.load(at, INDEX)
            self._expect(tensor, axis, value, self.index.value(extent))

    def _expect(self, tensor: LibraryTensor, axis: int, value: Value, wanted: Value) -> None:
        bad = self.builder.icmp_signed("!=", value, wanted)
        text = "input '%s': axis %lld is %lld; %lld is expected"
        self._refuse(bad, "SIZES", text, tensor.name, axis, value, wanted)

    def _fit(self) -> None:
        """Lay the workspace out, if it is large enough."""
        builder, choose = self.builder, self.module.functions["lay.out"]
        needed = builder.call(choose, (NULL, self.chosen))
        none = builder.icmp_signed("==", needed, INDEX(0))
        self._refuse(none, "SIZES", "'%s' serves no such sizes", self.plan.name)
        there = builder.load(self._at(CAPACITY_AT), INDEX)
        text = "'%s' needs %lld bytes at these sizes; the workspace has %lld"
        large = builder.icmp_signed(">", needed, there)
        self._refuse(large, "SIZES", text, self.plan.name, needed, there)
        builder.call(choose, (self.workspace, self.chosen))


_TABLE = """
%size = type {{ ptr, i64, i64 }}
@{p}_sizes.table = internal constant [{count} x %size] [{sizes}]
"""

INPUTS = OUTPUTS = SIZES = SIZE_TABLE = TENSORS_AT = 0
"""Of a plan: see `sizing_text`."""


@routine
def sizes() -> int:
    return SIZES


@routine
def size(number: int) -> Address:
    return entry(SIZE_TABLE, number, SIZES, 24)


@routine
def end_at(workspace: Address, number: int, count: int, first: int) -> Address:
    """An input or output at the sizes that are set; NULL where none are."""
    if workspace == 0 or number < 0 or number >= count or load64(workspace + BODY_AT) == 0:
        return 0
    return workspace + TENSORS_AT + TENSOR_BYTES * (first + number)


@routine
def input_at(workspace: Address, number: int) -> Address:
    return end_at(workspace, number, INPUTS, 0)


@routine
def output_at(workspace: Address, number: int) -> Address:
    return end_at(workspace, number, OUTPUTS, INPUTS)


def sizing_text(plan: LibraryPlan, texts: Texts) -> str:
    """The functions that need no formula."""
    ranges = ", ".join(
        f"%size {{ ptr {texts.text(size.name).text}, i64 {size.low}, i64 {size.high} }}"
        for size in plan.sizes
    )
    count = len(plan.sizes)
    names: dict[str, int | str] = {
        "INPUTS": len(plan.inputs), "OUTPUTS": len(plan.outputs), "SIZES": count,
        "SIZE_TABLE": f"@{plan.prefix}_sizes.table", "TENSORS_AT": plan.tensors_at,
    }  # fmt: skip
    called = (sizes, size, input_at, output_at)
    exported = {one.symbol: f"{plan.prefix}_{one.symbol}" for one in called}
    table = _TABLE.format(p=plan.prefix, count=count, sizes=ranges)
    return table + routines_text((*called, end_at), names, exported)
