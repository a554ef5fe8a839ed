"""Steps as a native program: kernels loaded, places as addresses.

Kernels' code is linked once, however many programs and executables run it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from tilesmith.codegen.native.kernel import KernelCode, NativeKernel
from tilesmith.codegen.native.programs.driver import NativeProgram
from tilesmith.compiler.backends.cpu.calls.call_tables import calls_of
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import CodeObject, DeviceStep, Recipe, kernels_of

_LOG = logging.getLogger(__name__)

Program = TypeVar("Program", bound=NativeProgram)


def linked(
    kind: type[Program], recipe: Recipe, steps: Sequence[DeviceStep], memory: RunMemory
) -> tuple[Program, dict[int, DeviceStep]]:
    """A program of some kind that runs steps on the given memory, and the step of each of its
    calls, by the call's identity."""
    used = {step.code: recipe.codes[step.code] for step in kernels_of(steps)}
    kernels = {number: _load(code) for number, code in used.items()}
    functions = {number: kernel.address for number, kernel in kernels.items()}
    steps_of_calls: dict[int, DeviceStep] = {}
    calls = calls_of(steps, functions, memory.address, steps_of_calls)
    program = kind(
        calls,
        recipe.threads,
        max((code.shared_bytes for code in used.values()), default=0),
        max((code.local_bytes for code in used.values()), default=0),
        keep=(kernels, memory),
    )
    _LOG.debug("linked %d steps of %s: %d kernels", len(steps), recipe.name, len(kernels))
    return program, steps_of_calls


_loaded: WeakValueDictionary[CodeObject, NativeKernel] = WeakValueDictionary()
"""What is loaded at present: executables of one model at several sizes share it."""


def _load(code: CodeObject) -> NativeKernel:
    kernel = _loaded.get(code)
    if kernel is None:
        kernel = NativeKernel(KernelCode((), code.code, None, code.shared_bytes, code.local_bytes))
        _loaded[code] = kernel
    return kernel
