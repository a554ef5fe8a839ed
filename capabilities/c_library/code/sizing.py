"""Libraries of models whose sizes vary: the functions that set sizes, and tell what follows.

`PREFIX_resize` reads the sizes from shapes, `capabilities.c_library.code.layout` does the rest.
Invariant: a workspace whose sizes are refused stays as it was.
"""

from tilesmith.capabilities.c_library.code.layout import write_layout
from tilesmith.capabilities.c_library.code.performing import Texts
from tilesmith.capabilities.c_library.code.plan import (
    BODY_AT,
    BUSY_AT,
    CAPACITY_AT,
    STATUS_AT,
    TENSOR_BYTES,
    TEXT_AT,
    LibraryPlan,
)
from tilesmith.capabilities.c_library.code.processor import able
from tilesmith.capabilities.c_library.code.runtime import entry, fault
from tilesmith.capabilities.c_library.code.status import ARGUMENT, BUSY
from tilesmith.capabilities.c_library.code.status import SIZES as BAD_SIZES
from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    atomic_store32,
    exchange32,
    load32,
    load64,
    room,
    routine,
    routines_text,
    store8,
    store32,
    store64,
)
from tilesmith.codegen.llvm.expressions.indexing import IndexEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, POINTER, VOID, Function, Module
from tilesmith.search_space.expressions.expression import Expr, as_expr

FUNCTIONS = ("sizes", "size", "resize", "workspace_bytes_at", "input_at", "output_at")
"""Of a library whose sizes vary, behind its prefix, besides those that all have."""

_SIZE_BYTES, _AXIS_BYTES = 24, 40
"""Of a row of a size: {name, least, most}. Of a row of an input's axis: {name of the input, its
number, axis, number of the size that it is or -1, what is said where that size is out of range}; 0
in place of the last where an axis before is that size."""

_TABLES = """
%size = type {{ ptr, i64, i64 }}
%axis = type {{ ptr, i64, i64, i64, ptr }}
@{p}_sizes.table = internal constant [{count} x %size] [{sizes}]
@axes = internal constant [{axis_count} x %axis] [{axes}]
@layouts = internal constant [{body_count} x ptr] [{layouts}]
"""

INPUTS = OUTPUTS = SIZES = SIZES_BYTES = SIZE_TABLE = TENSORS_AT = AXES = AXES_BYTES = (
    AXIS_TABLE
) = 0
BODIES = REGIONS = LAYOUTS = NO_ARRAY = SHAPES = NO_SHAPE = OTHER = NONE = MORE = NAME = 0
"""Of a plan: see `sizing_text`."""

layout_by = External("", "i64 (ptr, ptr)")
extents = External("extents", "void (ptr, ptr)")


@routine
def sizes() -> int:
    return SIZES


@routine
def size(number: int) -> Address:
    return entry(SIZE_TABLE, number, SIZES, _SIZE_BYTES)


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


@routine
def lay_out(workspace: Address, chosen: Address) -> int:
    """The layout of the body that serves some sizes; 0 where none does."""
    for body in range(BODIES):
        inside = 0
        for n in range(SIZES):
            region = REGIONS + 16 * (body * SIZES + n)
            value = load64(chosen + 8 * n)
            inside += int(value >= load64(region) and value <= load64(region + 8))
        if inside == SIZES:
            return layout_by(load64(LAYOUTS + 8 * body), workspace, chosen)
    return 0


@routine
def workspace_bytes_at(chosen: Address) -> int:
    if chosen == 0 or able() != 0:
        return 0
    return lay_out(0, chosen)


@routine
def differs(workspace: Address, row: Address, value: int, wanted: int) -> Int32:
    """Whether an axis is another than is expected, which is a fault."""
    if value != wanted:
        fault(workspace, BAD_SIZES, OTHER, load64(row), load64(row + 16), value, wanted, 0)
    return int(value != wanted)


@routine
def read_sizes(workspace: Address, shapes: Address, chosen: Address) -> None:
    """Sizes, from the axes that are just that; all other axes are as the sizes have them."""
    if shapes == 0:
        fault(workspace, ARGUMENT, NO_ARRAY, SHAPES, 0, 0, 0, 0)
        return
    for n in range(AXES):
        row = AXIS_TABLE + _AXIS_BYTES * n
        if load64(shapes + 8 * load64(row + 8)) == 0:
            fault(workspace, ARGUMENT, NO_SHAPE, load64(row), 0, 0, 0, 0)
            return
    expected = room(AXES_BYTES)
    for others in range(2):
        for n in range(AXES):
            row = AXIS_TABLE + _AXIS_BYTES * n
            axis = load64(row + 16)
            number = load64(row + 24)
            value = load64(load64(shapes + 8 * load64(row + 8)) + 8 * axis)
            if others == 0 and number >= 0:
                known = load64(row + 32) == 0
                if known and differs(workspace, row, value, load64(chosen + 8 * number)) != 0:
                    return
                least = load64(SIZE_TABLE + _SIZE_BYTES * number + 8)
                most = load64(SIZE_TABLE + _SIZE_BYTES * number + 16)
                if value < least or value > most:
                    text = load64(row + 32)
                    fault(workspace, BAD_SIZES, text, load64(row), axis, value, least, most)
                    return
                store64(chosen + 8 * number, value)
            other = others == 1 and number < 0
            if other and differs(workspace, row, value, load64(expected + 8 * n)) != 0:
                return
        if others == 0:
            extents(chosen, expected)


@routine
def resize(workspace: Address, shapes: Address) -> Int32:
    if workspace == 0:
        return ARGUMENT
    if exchange32(workspace + BUSY_AT, 1) != 0:
        return BUSY
    store32(workspace + STATUS_AT, 0)
    store8(workspace + TEXT_AT, 0)
    chosen = room(SIZES_BYTES)
    read_sizes(workspace, shapes, chosen)
    if load32(workspace + STATUS_AT) == 0:
        needed = lay_out(0, chosen)
        there = load64(workspace + CAPACITY_AT)
        if needed == 0:
            fault(workspace, BAD_SIZES, NONE, NAME, 0, 0, 0, 0)
        elif needed > there:
            fault(workspace, BAD_SIZES, MORE, NAME, needed, there, 0, 0)
        else:
            lay_out(workspace, chosen)
    code = load32(workspace + STATUS_AT)
    atomic_store32(workspace + BUSY_AT, 0)
    return code


def write_sizing(module: Module, plan: LibraryPlan, texts: Texts) -> None:
    """Add what is made of formulas to a module: `layout.N`, and `extents(sizes, where)`, which
    computes what each axis of the inputs has to be."""
    for number, body in enumerate(plan.bodies):
        write_layout(module, plan, number, body, texts)
    function = Function(module, "extents", VOID, (POINTER, POINTER))
    function.internal = True
    builder = Builder(function.append_block("entry"))
    chosen, where = function.arguments
    index = IndexEmitter(builder)
    for number, size in enumerate(plan.sizes):
        at = builder.gep(chosen, INDEX(number), INDEX)
        index.environment[size.name] = builder.load(at, INDEX)
    for number, (_, _, _, extent) in enumerate(_axes(plan)):
        builder.store(index.value(extent), builder.gep(where, INDEX(number), INDEX))
    builder.ret_void()


def _axes(plan: LibraryPlan) -> list[tuple[str, int, int, Expr]]:
    """Every axis of the inputs: the input's name and number, the axis, its extent."""
    return [
        (tensor.name, number, axis, as_expr(extent))
        for number, tensor in enumerate(plan.inputs)
        for axis, extent in enumerate(tensor.shape)
    ]


def _axis_rows(plan: LibraryPlan, texts: Texts) -> list[str]:
    places = {size.name: number for number, size in enumerate(plan.sizes)}
    rows, known = [], set[str]()
    for name, number, axis, extent in _axes(plan):
        said, size = "null", str(extent)
        if size in places and size not in known:
            text = f"input '%s': axis %lld ({size}) is %lld; it may be %lld to %lld"
            said = texts.text(text).text
            known.add(size)
        what = f"i64 {number}, i64 {axis}, i64 {places.get(size, -1)}, ptr {said}"
        rows.append(f"%axis {{ ptr {texts.text(name).text}, {what} }}")
    return rows


def sizing_text(plan: LibraryPlan, texts: Texts) -> str:
    """The functions that need no formula."""
    axes, count = _axis_rows(plan, texts), len(plan.sizes)
    regions = [end for body in plan.bodies for size in body.region for end in (size.low, size.high)]
    sentences = {
        "NO_ARRAY": "the array of %s is NULL", "SHAPES": "shapes", "NAME": plan.name,
        "NO_SHAPE": "the shape of input '%s' is NULL", "NONE": "'%s' serves no such sizes",
        "OTHER": "input '%s': axis %lld is %lld; %lld is expected",
        "MORE": "'%s' needs %lld bytes at these sizes; the workspace has %lld",
    }  # fmt: skip
    names: dict[str, int | str] = {
        **{name: texts.text(sentence).text for name, sentence in sentences.items()},
        "INPUTS": len(plan.inputs), "OUTPUTS": len(plan.outputs), "SIZES": count,
        "SIZES_BYTES": 8 * count, "SIZE_TABLE": f"@{plan.prefix}_sizes.table",
        "TENSORS_AT": plan.tensors_at, "AXES": len(axes), "AXES_BYTES": 8 * len(axes),
        "AXIS_TABLE": "@axes", "BODIES": len(plan.bodies), "LAYOUTS": "@layouts",
        "REGIONS": texts.numbers(regions).text,
    }  # fmt: skip
    ranges = ", ".join(
        f"%size {{ ptr {texts.text(size.name).text}, i64 {size.low}, i64 {size.high} }}"
        for size in plan.sizes
    )
    called = (sizes, size, resize, workspace_bytes_at, input_at, output_at)
    exported = {one.symbol: f"{plan.prefix}_{one.symbol}" for one in called}
    tables = _TABLES.format(
        p=plan.prefix, count=count, sizes=ranges, axis_count=len(axes), axes=", ".join(axes),
        body_count=len(plan.bodies),
        layouts=", ".join(f"ptr @layout.{n}" for n in range(len(plan.bodies))),
    )  # fmt: skip
    inner = (end_at, lay_out, differs, read_sizes)
    return tables + routines_text((*called, *inner), names, exported)
