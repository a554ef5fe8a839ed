"""The body of a bound program becomes the text of one LLVM module with one kernel function.

A prologue is compiled by itself, as the body of `Program.compile_time()`: it runs once, many
configurations share it, and an artifact has no use for its code.
"""

from dataclasses import dataclass, replace

from tilesmith.codegen.llvm.emitter import FunctionEmitter
from tilesmith.codegen.llvm.text.ir import Module
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.transforms.specialisation import finish


@dataclass(frozen=True)
class ModuleText:
    """LLVM IR and what its caller must provide.

    Attributes:
        text: the module, with the function `run`.
        shared_bytes: workspace seen by all threads.
        local_bytes: workspace of each thread.
    """

    text: str
    shared_bytes: int
    local_bytes: int


def emit_module(program: Program, target: Target) -> ModuleText:
    """Emit the body of a bound program for a CPU target.

    Raises:
        CodegenError: a symbol is left unbound, or an extent that must be constant is not.
    """
    program = finish(replace(program, prologue=None))
    module = Module(program.name, target.text("isa.triple"))
    run = FunctionEmitter(module, "run", program, target)
    return ModuleText(str(module), run.shared.peak, run.local.peak)
