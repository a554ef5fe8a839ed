"""The CPU backend: kernels are native functions, a run of them is one native call.

Code is checked against the instruction set of the machine before it is loaded; objects are linked
once for each executable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from codegen.host import host_target
from codegen.native.driver import Call, NativeProgram
from codegen.native.kernel import KernelCode, NativeKernel, compile_program, concrete_shape
from codegen.structures import lowered
from compiler.backend import Backend, Compiled, backends
from compiler.program import CodeObject, KernelStep, Place, Recipe
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.errors import TargetError
from search_space.program import Buffer, Program, blocks
from search_space.target import Target
from search_space.workload import Workload


class CpuBackend(Backend):
    """See the module's docstring."""

    family = "cpu"

    def check(self, target: Target) -> None:
        """This machine must have the target's architecture and every feature its code may use."""
        host = host_target()
        wanted, here = (t.text("isa.triple").split("-")[0] for t in (target, host))
        if wanted != here:
            raise TargetError(f"the code is for {wanted} processors; this machine is {here}")
        known = llvm.get_host_cpu_features()
        features = target.text("isa.features").split(",")
        missing = [f[1:] for f in features if f.startswith("+") and not known.get(f[1:])]
        if missing:
            raise TargetError(
                f"the code needs a processor with {target.text('isa.name')} "
                f"({', '.join(missing[:4])}), which this machine does not have"
            )

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        program = lowered(workload, target, config)
        code = compile_program(program, target)

        def prepare(constants: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
            return NativeKernel(code).prepare(constants) if code.has_prologue else {}

        return Compiled(
            CodeObject(code.object, code.shared_bytes, code.local_bytes),
            tuple(buffer.name for buffer in code.parameters),
            {buffer.name: _nbytes(buffer) for buffer in code.parameters},
            code.parameters[-1].name,
            _unread(program),
            prepare,
        )

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        arena: NDArray[np.uint8],
        constants: NDArray[np.uint8],
    ) -> Callable[[], None]:
        used = {step.code: recipe.codes[step.code] for step in steps}
        kernels = {number: _load(code) for number, code in used.items()}
        bases = {"arena": arena.ctypes.data, "constant": constants.ctypes.data}

        def address(place: Place) -> int:
            return 0 if place.region == "none" else bases[place.region] + place.offset

        calls = [
            Call(kernels[step.code].address, tuple(address(place) for place in step.arguments))
            for step in steps
        ]
        program = NativeProgram(
            calls,
            recipe.threads,
            max(code.shared_bytes for code in used.values()),
            max(code.local_bytes for code in used.values()),
            keep=(kernels, arena, constants),
        )
        return program.run


backends.register("cpu")(CpuBackend())


def _load(code: CodeObject) -> NativeKernel:
    return NativeKernel(KernelCode((), code.code, False, code.shared_bytes, code.local_bytes))


def _nbytes(buffer: Buffer) -> int:
    return int(np.prod(concrete_shape(buffer), dtype=np.int64)) * size_of(buffer.dtype)


def _unread(program: Program) -> frozenset[str]:
    """Input parameters that the body never loads."""
    read = {access.buffer for block in blocks(program.body) for access, _ in block.accesses()}
    inputs = {buffer.name for buffer in program.parameters if buffer.role == "input"}
    return frozenset(inputs - read)
