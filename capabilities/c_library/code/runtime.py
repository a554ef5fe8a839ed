"""The functions of a library that its users call, and what they have in common.

What does not depend on the model is compiled from here; `capabilities.c_library.code.running`
writes the run itself. All memory is the workspace's, which is result once: a run allocates nothing.
Names stay inside the library but for those that begin with the model's prefix. Sources of numbers:
POSIX.1-2017, Linux's `uapi` headers (x86-64, AArch64 and RISC-V agree on those used), glibc's
manual.
"""

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.helpers import memset, start, stop
from tilesmith.capabilities.c_library.code.performing import Texts
from tilesmith.capabilities.c_library.code.plan import (
    CAPACITY_AT,
    OWNED_AT,
    STATUS_AT,
    TENSOR_BYTES,
    TEXT_AT,
    TEXT_BYTES,
    THREADS_AT,
    LibraryPlan,
    LibraryTensor,
)
from tilesmith.capabilities.c_library.code.processor import TEXT as PROCESSOR_TEXT
from tilesmith.capabilities.c_library.code.status import ARGUMENT, INDEX, MEMORY, STATUS
from tilesmith.capabilities.c_library.code.weights import ready
from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    load64,
    room,
    routine,
    routines_text,
    store32,
    store64,
)
from tilesmith.search_space.expressions.expression import as_expr

_LARGE = 2 << 20
"""Bytes of a workspace from which it lies in huge pages."""

INPUTS = OUTPUTS = STATUSES = INPUT_TABLE = OUTPUT_TABLE = STATUS_TABLE = 0
ABOUT = UNKNOWN = INDEX_TEXT = OVERLAP_TEXT = 0
WORKSPACE_BYTES = LEAST_BYTES = ALIGNMENT = HUGE = 0
"""Of a plan: see `common`."""

posix_memalign = External("posix_memalign", "i32 (ptr, i64, i64)")
free = External("free", "void (ptr)")
madvise = External("madvise", "i32 (ptr, i64, i32)")
snprintf = External("snprintf", "i32 (ptr, i64, ptr, ...)")


@routine
def inputs() -> int:
    return INPUTS


@routine
def outputs() -> int:
    return OUTPUTS


@routine
def entry(table: Address, number: int, count: int, nbytes: int) -> Address:
    """An entry of a table; NULL of a number that it has not."""
    if number >= 0 and number < count:
        return table + number * nbytes
    return 0


@routine
def input_(number: int) -> Address:
    return entry(INPUT_TABLE, number, INPUTS, TENSOR_BYTES)


@routine
def output(number: int) -> Address:
    return entry(OUTPUT_TABLE, number, OUTPUTS, TENSOR_BYTES)


@routine
def about() -> Address:
    return ABOUT


@routine
def status(code: Int32) -> Address:
    at = entry(STATUS_TABLE, code, STATUSES, 8)
    if at == 0:
        return UNKNOWN
    return load64(at)


@routine
def error(workspace: Address) -> Address:
    if workspace == 0:
        return status(ARGUMENT)
    return workspace + TEXT_AT


@routine
def workspace_bytes() -> int:
    return WORKSPACE_BYTES


@routine
def create(threads: Int32, result: Address) -> Int32:
    if result == 0:
        return ARGUMENT
    store64(result, 0)
    box = room(8)
    if posix_memalign(box, ALIGNMENT, WORKSPACE_BYTES) != 0:
        return MEMORY
    memory = load64(box)
    if HUGE:
        madvise(memory, WORKSPACE_BYTES, 14)  # MADV_HUGEPAGE
    code = create_in(memory, WORKSPACE_BYTES, threads, result)
    if code != 0:
        free(memory)
        return code
    store64(memory + OWNED_AT, 1)
    return 0


@routine
def create_in(memory: Address, nbytes: int, threads: Int32, result: Address) -> Int32:
    if result == 0:
        return ARGUMENT
    store64(result, 0)
    if memory == 0 or memory & 63 != 0 or threads < 0 or nbytes < LEAST_BYTES:
        return ARGUMENT
    code = ready(room(8))
    if code != 0:
        return code
    memset(memory, 0, LEAST_BYTES, 0)
    store64(memory + CAPACITY_AT, nbytes)
    code = start(memory, threads)
    if code == 0:
        store64(result, memory)
    return code


@routine
def destroy(workspace: Address) -> None:
    if workspace == 0:
        return
    stop(workspace, load64(workspace + THREADS_AT))
    if load64(workspace + OWNED_AT) != 0:
        free(workspace)


@routine
def fault(
    workspace: Address, code: Int32, text: Address, what: Address, one: int, two: int, three: int,
    four: int,
) -> None:  # fmt: skip
    """Leave a status and its sentence: a name, and up to four numbers in it."""
    store32(workspace + STATUS_AT, code)
    snprintf(workspace + TEXT_AT, TEXT_BYTES, text, what, one, two, three, four)


@routine
def index_fault(workspace: Address, node: Address, index: int, extent: int) -> None:
    fault(workspace, INDEX, INDEX_TEXT, node, index, extent, -extent, extent - 1)


@routine
def at_end(first: Address, second: Address, number: int, step: int) -> Address:
    """What stands at an input's or output's place in two tables of theirs."""
    if number < INPUTS:
        return load64(first + number * step)
    return load64(second + (number - INPUTS) * step)


@routine
def refuse_overlaps(workspace: Address, given: Address, taken: Address, sizes: Address) -> None:
    """An output that lies in an input or in another output is a fault."""
    for one in range(INPUTS, INPUTS + OUTPUTS):
        begin = at_end(given, taken, one, 8)
        size = load64(sizes + 8 * one)
        for two in range(one):
            other = at_end(given, taken, two, 8)
            nbytes = load64(sizes + 8 * two)
            if size != 0 and nbytes != 0 and begin < other + nbytes and other < begin + size:
                name = at_end(INPUT_TABLE, OUTPUT_TABLE, one, TENSOR_BYTES)
                known = at_end(INPUT_TABLE, OUTPUT_TABLE, two, TENSOR_BYTES)
                fault(workspace, ARGUMENT, OVERLAP_TEXT, name, known, 0, 0, 0)
                return


_CALLED = {
    "inputs": inputs, "outputs": outputs, "input": input_, "output": output, "about": about,
    "status": status, "error": error, "workspace_bytes": workspace_bytes, "create": create,
    "create_in": create_in, "destroy": destroy,
}  # fmt: skip
"""By their names behind the prefix."""

_TABLES = """
%tensor = type {{ ptr, ptr, i32, i32, ptr, i64 }}
@{p}_inputs.table = internal constant [{input_count} x %tensor] [{inputs}]
@{p}_outputs.table = internal constant [{output_count} x %tensor] [{outputs}]
@{p}_status.table = internal constant [{status_count} x ptr] [{status}]
"""


def common(plan: LibraryPlan, texts: Texts) -> str:
    """What every library has: its tensors, its workspaces, what it says."""
    p, large = plan.prefix, plan.workspace_bytes >= _LARGE
    index = "%s takes index %lld of an axis with %lld entries; indices run from %lld to %lld"
    names: dict[str, int | str] = {
        "INPUTS": len(plan.inputs), "OUTPUTS": len(plan.outputs), "STATUSES": len(STATUS),
        "INPUT_TABLE": f"@{p}_inputs.table", "OUTPUT_TABLE": f"@{p}_outputs.table",
        "STATUS_TABLE": f"@{p}_status.table", "ABOUT": texts.text(plan.about).text,
        "UNKNOWN": texts.text("no such status").text, "INDEX_TEXT": texts.text(index).text,
        "OVERLAP_TEXT": texts.text("output '%s' overlaps the memory of '%s'").text,
        "WORKSPACE_BYTES": plan.workspace_bytes, "HUGE": int(large),
        "LEAST_BYTES": plan.arena_at if plan.sizes else plan.workspace_bytes,
        "ALIGNMENT": _LARGE if large else 64,
    }  # fmt: skip
    sentences = [
        f"ptr @{PROCESSOR_TEXT}" if name == "PROCESSOR" else f"ptr {texts.text(sentence).text}"
        for name, sentence in STATUS
    ]
    tables = _TABLES.format(
        p=p, inputs=_table(plan, plan.inputs, texts), outputs=_table(plan, plan.outputs, texts),
        input_count=len(plan.inputs), output_count=len(plan.outputs), status_count=len(STATUS),
        status=", ".join(sentences),
    )  # fmt: skip
    exported = {one.symbol: f"{p}_{name}" for name, one in _CALLED.items()}
    inner = (entry, fault, index_fault, at_end, refuse_overlaps)
    return tables + routines_text((*_CALLED.values(), *inner), names, exported)


def _table(plan: LibraryPlan, tensors: Sequence[LibraryTensor], texts: Texts) -> str:
    return ", ".join(
        f"%tensor {{ ptr {texts.text(tensor.name).text}, "
        f"ptr {texts.text(tensor.dtype).text}, i32 {tensor.onnx_type}, "
        f"i32 {len(tensor.shape)}, ptr {texts.numbers(_shape(tensor)).text}, "
        f"i64 {tensor.most_bytes(plan.sizes)} }}"
        for tensor in tensors
    )


def _shape(tensor: LibraryTensor) -> tuple[int, ...]:
    """Extents, -1 for those that vary."""
    extents = [as_expr(extent).constant for extent in tensor.shape]
    return tuple(-1 if extent is None else extent for extent in extents) or (1,)
