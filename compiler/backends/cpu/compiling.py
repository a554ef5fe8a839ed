"""A configuration compiled for the CPU, or taken from the cache on disk.

Compiled configurations are kept under everything that decides them, our own sources included, so
that compiling a model again generates no code.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith import codegen, search_space
from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import (
    KernelCode,
    NativeKernel,
    compile_program,
    concrete_shape,
    decoded,
    encoded,
)
from tilesmith.codegen.programs.structures import KernelSpec
from tilesmith.compiler.backends.backend import Compiled, backends
from tilesmith.compiler.recipe.program import CodeObject
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import expressions
from tilesmith.search_space.hardware.instruction_set import instruction_set_of
from tilesmith.search_space.ir.program import Buffer, Program, blocks
from tilesmith.search_space.support import extensions
from tilesmith.search_space.support.errors import TargetError


def compiled(spec: KernelSpec) -> Compiled:
    """See `Backend.compile_varying`; without sizes, `Backend.compile`."""
    code, unread = _compiled(spec)
    nbytes = {} if spec.sizes else {buffer.name: _nbytes(buffer) for buffer in code.parameters}

    @cache
    def kernel() -> NativeKernel:
        return NativeKernel(_packing(code, spec))

    def prepare(constants: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return code.prepared(constants) if code.prologue is None else kernel().prepare(constants)

    names = tuple(buffer.name for buffer in code.parameters)
    needs = tuple(0 if name in unread else nbytes.get(name, 1) for name in names)
    return Compiled(
        CodeObject(code.object, code.shared_bytes, code.local_bytes, needs),
        names,
        nbytes,
        code.parameters[-1].name,
        unread,
        prepare,
    )


def _compiled(spec: KernelSpec) -> tuple[KernelCode, frozenset[str]]:
    """Code of a configuration and the operands it never reads, from the cache if it is there."""
    key = _cache_key(spec)
    cached = object_cache.load(key)
    if cached is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return decoded(cached)
    program = spec.program()
    code = compile_program(program, spec.target)
    unread = _unread(program) & frozenset(spec.workload.constants)
    object_cache.store(key, encoded(code, unread))
    return code, unread


def _packing(code: KernelCode, spec: KernelSpec) -> KernelCode:
    """Code that packs weights for a target on this machine: its own, or the same program's here.

    Programs say what is computed, lane by lane, whatever the processor; so weights for a processor
    of another kind are packed here, by code for whatever vectors there are.
    """
    try:
        backends["cpu"].check(spec.target)
    except TargetError:
        whole = spec.program()
        first = whole.compile_time()
        assert first is not None, f"{whole.name} has no weights to pack"
        here = host_target()
        plain = cpu_target("packing", "generic", here.text("isa.triple"))
        packing = compile_program(first, plain)
        return replace(packing, prologue=packing.object)
    return code


def _cache_key(spec: KernelSpec) -> str:
    target = spec.target
    facts = (target.text(name) for name in ("isa.triple", "isa.processor", "isa.features"))
    parts = (
        "kernel", spec.workload.key, spec.config.key, target.identity, *facts, toolchain.version(),
        repr(instruction_set_of(target)), _sources(), *map(str, spec.sizes), repr(spec.typical),
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _sources() -> str:
    """A digest of the code that turns configurations into objects."""
    digest = hashlib.sha256()
    digest.update(Path(__file__).read_bytes())
    for package in (search_space, codegen):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    for path in extensions.sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _nbytes(buffer: Buffer) -> int:
    return int(np.prod(concrete_shape(buffer), dtype=np.int64)) * size_of(buffer.dtype)


def _unread(program: Program) -> frozenset[str]:
    """Input parameters that the body reads no element of."""
    read: set[str] = set()
    for block in blocks(program.body):
        read |= {access.buffer for access, _ in block.accesses()}
        for index in (*block.indices, *block.guard, *expressions(block.value)):
            read |= index.tensors()
    inputs = {buffer.name for buffer in program.parameters if buffer.role == "input"}
    return frozenset(inputs - read)
