"""A bound program becomes the text of one LLVM module with one or two kernel functions."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from codegen.llvm.emitter import FunctionEmitter
from search_space.program import Program
from search_space.simplification import finish
from search_space.target import Target


@dataclass(frozen=True)
class ModuleText:
    """LLVM IR and what its caller must provide.

    Attributes:
        text: the module, functions `run` and, if weights are packed, `prepare`.
        shared_bytes: workspace seen by all threads.
        local_bytes: workspace of each thread.
    """

    text: str
    shared_bytes: int
    local_bytes: int


def emit_module(program: Program, target: Target) -> ModuleText:
    """Emit a bound program for a CPU target.

    Raises:
        CodegenError: a symbol is left unbound, or an extent that must be constant is not.
    """
    program = finish(program)
    module = ir.Module(name=program.name)
    module.triple = target.text("isa.triple")
    run = FunctionEmitter(module, "run", program, program.body, target)
    shared, local = run.shared.peak, run.local.peak
    if program.prologue is not None:
        prepare = FunctionEmitter(module, "prepare", program, program.prologue, target)
        shared = max(shared, prepare.shared.peak)
        local = max(local, prepare.local.peak)
    return ModuleText(str(module), shared, local)
