"""From a plan to one object: the library's own code, its kernels, its weights."""

from dataclasses import dataclass

from tilesmith.capabilities.c_library.code.helpers import threads
from tilesmith.capabilities.c_library.code.performing import Texts, kernel_name, write_perform
from tilesmith.capabilities.c_library.code.plan import LibraryPlan
from tilesmith.capabilities.c_library.code.processor import plainest, processor_text
from tilesmith.capabilities.c_library.code.running import write_run
from tilesmith.capabilities.c_library.code.runtime import common
from tilesmith.capabilities.c_library.code.sizing import FUNCTIONS as OF_SIZES
from tilesmith.capabilities.c_library.code.sizing import sizing_text, write_sizing
from tilesmith.capabilities.c_library.code.weights import SYMBOL, weights_text
from tilesmith.capabilities.c_library.packaging.elf import Merged, ObjectFile, blob, read
from tilesmith.codegen.compiled.routines import joined
from tilesmith.codegen.llvm.text.ir import Module
from tilesmith.codegen.llvm.threads import barrier_function
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs import team

FUNCTIONS = (
    "init", "verify", "end", "create", "create_in", "workspace_bytes", "destroy", "inputs",
    "outputs", "input", "output", "run", "error", "status", "about",
)  # fmt: skip
"""Of a library, behind its prefix."""


@dataclass(frozen=True)
class Built:
    """One object, and the names it defines for others."""

    object: Merged
    names: tuple[str, ...]


def module_text(plan: LibraryPlan, head: bytes) -> str:
    """The library's own code in LLVM's language."""
    module, texts = Module(f"{plan.prefix}_library", plan.target.text("isa.triple")), Texts()
    if plan.team > 1:
        barrier_function(module)
    write_perform(module, plan, texts)
    write_run(module, plan, texts)
    if plan.sizes:
        write_sizing(module, plan, texts)
    parts = [common(plan, texts), threads(plan), weights_text(plan, head)]
    parts.append(processor_text(plan.target))
    if plan.sizes:
        parts.append(sizing_text(plan, texts))
    if plan.team > 1:
        parts.append(team.text())
    return joined(str(module), *parts, str(texts))


def build(plan: LibraryPlan, head: bytes = b"") -> Built:
    """Put everything together.

    Args:
        head: of the file of weights; empty where they are to be inside.

    Raises:
        CodegenError: the target's objects are not ELF of 64 bits, or LLVM refuses the code.
    """
    own = read(toolchain.emit_object(module_text(plan, head), plainest(plan.target)))
    parts: list[tuple[ObjectFile, dict[str, str]]] = [(own, {})]
    for number, kernel in enumerate(plan.kernels):
        name = kernel_name(plan, number)
        parts.append((read(kernel.code), {"run": name, "run.body": f"{name}.body"}))
    if not head:
        weights = [memoryview(piece).cast("B") for piece in plan.weights]
        large = plan.weight_bytes > 0
        parts.append((blob(SYMBOL, weights, 64, own.machine, large=large), {}))
    functions = (*FUNCTIONS, *(OF_SIZES if plan.sizes else ()))
    names = tuple(f"{plan.prefix}_{function}" for function in functions)
    return Built(Merged(parts, frozenset(names)), names)
