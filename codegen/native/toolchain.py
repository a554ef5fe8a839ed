"""LLVM as a tool: optimise a module for a target, emit an object or assembly.

Options found by measurement (docs/decisions): the machine scheduler before register allocation
spills accumulator tiles that fit, so it is off.
LLVM's own loop and SLP vectorisers are off, vectors are ours.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import llvmlite
import llvmlite.binding as llvm

from tilesmith.search_space.hardware.instruction_set import instruction_set, instruction_set_files
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import CodegenError

OPTIONS = ("-enable-misched=false",)
OPTIMISATION = 3

PASSES = ("sroa", "instruction_combine", "simplify_cfg", "new_gvn")
"""Enough for what we emit, in a quarter of the standard pipeline's time: allocas become registers,
repeated address arithmetic and loads are shared. Loop-invariant code stays where it is, which keeps
broadcasts out of the accumulators' registers (depthwise convolution gains 10 %)."""
MANY_BRANCHES, LINES_A_BRANCH = 64, 30
"""Modules with more branches, and fewer lines to each, take LLVM's standard pipeline: it removes
tests that imply each other (pooling at borders runs up to 1.9 times as fast). Products among as
many tests gain nothing by it."""
MANY_LINES = 20_000
"""So do larger modules: its value numbering stays linear. To 12,000 lines the short list takes a
quarter of its time, and the code is as fast."""


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    for option in OPTIONS:
        llvm.set_option("", option)


@cache
def _machine(triple: str, processor: str, features: str) -> llvm.TargetMachine:
    _initialize()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CodegenError(f"LLVM has no code generator for '{triple}': {error}") from error
    return target.create_target_machine(
        cpu=processor, features=features, opt=OPTIMISATION, reloc="pic", codemodel="default"
    )


def linker(target: Target) -> Any:
    """What links objects for a target into this process.

    JITLink gives the sections of an object one block of memory. The older linker maps each for
    itself, and where a process has few holes in its address space (it has loaded PyTorch, JAX and
    more) they can come to lie over 2 GiB apart, which relative addresses do not reach: LLVM aborts.
    """
    return llvm.create_lljit_compiler(machine(target), use_jit_link=True, suppress_errors=False)


def load(
    code: bytes, target: Target, label: str, names: Sequence[str]
) -> tuple[dict[str, int], Any]:
    """Addresses of an object's functions in this process, by name, and what holds their code."""
    jit = linker(target)
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in names:
        builder = builder.export_symbol(name)
    library = builder.link(jit, label)
    return {name: library[name] for name in names}, (jit, library)


def machine(target: Target) -> llvm.TargetMachine:
    """The LLVM target machine of a CPU target."""
    return _machine(
        target.text("isa.triple"), target.text("isa.processor"), target.text("isa.features")
    )


def optimise(text: str, target: Target, standard: bool = False) -> llvm.ModuleRef:
    """Parse, verify and optimise a module; `standard`: with LLVM's whole pipeline in any case.

    Raises:
        CodegenError: LLVM refuses the module (a defect of ours, with LLVM's message).
    """
    chosen = machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM refused the generated module: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(chosen, options)
    if standard or _is_for_the_standard_pipeline(text):
        builder.getModulePassManager().run(module, builder)
        return module
    passes = llvm.create_new_function_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def _is_for_the_standard_pipeline(text: str) -> bool:
    branches, lines = text.count("br i1"), text.count("\n")
    dense = branches > MANY_BRANCHES and lines < LINES_A_BRANCH * branches
    return dense or lines > MANY_LINES


def emit_object(text: str, target: Target) -> bytes:
    """A relocatable object file."""
    return bytes(machine(target).emit_object(optimise(text, target)))


def emit_assembly(text: str, target: Target) -> str:
    """Assembly text, for people."""
    return str(machine(target).emit_assembly(optimise(text, target)))


def check_loadable(content: bytes) -> None:
    """Raise `CodegenError` for an ELF object of another machine than this process's."""
    machine, own = _elf_machine(content), _own_machine()
    if machine not in (None, own):
        raise CodegenError(
            f"code for {_architecture(machine)} cannot be loaded on {_architecture(own)}; "
            "compile it for this CPU"
        )


def _elf_machine(content: bytes) -> int | None:
    """`e_machine` of the ELF specification; None of an object of another format."""
    order: Literal["little", "big"] = "big" if content[5:6] == b"\2" else "little"
    return int.from_bytes(content[18:20], order) if content[:4] == b"\x7fELF" else None


@cache
def _own_machine() -> int | None:
    _initialize()
    triple = llvm.get_process_triple()
    empty = llvm.parse_assembly(f'target triple = "{triple}"')
    return _elf_machine(_machine(triple, "", "").emit_object(empty))


def _architecture(machine: int | None) -> str:
    """The name of an ELF machine, as far as instruction sets say."""
    for name in instruction_set_files:
        if instruction_set(name).elf_machine == machine:
            return instruction_set(name).architectures[0]
    return f"the ELF machine {machine}"


def version() -> str:
    """LLVM and llvmlite versions and the options in force: part of every code cache key."""
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    choices = " ".join((*OPTIONS, *PASSES, *map(str, (MANY_BRANCHES, LINES_A_BRANCH, MANY_LINES))))
    return f"llvm {llvm_version} llvmlite {llvmlite.__version__} {choices}"


def content_key(text: str, target: Target) -> str:
    """SHA-256 of everything that decides the object."""
    parts = (
        version(),
        target.text("isa.triple"),
        target.text("isa.processor"),
        target.text("isa.features"),
        text,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
