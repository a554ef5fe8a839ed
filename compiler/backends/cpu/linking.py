"""Steps as a native program: kernels loaded, places as addresses.

Kernels' code is linked once, however many programs and executables run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from tilesmith.codegen.native.driver import ALL, AnyCall, Branch, Call, Move, NativeProgram, Repeat
from tilesmith.codegen.native.kernel import KernelCode, NativeKernel
from tilesmith.compiler.areas import Memory
from tilesmith.compiler.program import (
    BranchStep,
    CodeObject,
    DeviceStep,
    KernelStep,
    LoopStep,
    MoveStep,
    Recipe,
    kernels_of,
)

Program = TypeVar("Program", bound=NativeProgram)


def linked(
    kind: type[Program], recipe: Recipe, steps: Sequence[DeviceStep], memory: Memory
) -> tuple[Program, dict[int, DeviceStep]]:
    """A program of some kind that runs steps on the given memory, and the step of each of its
    calls, by the call's identity."""
    used = {step.code: recipe.codes[step.code] for step in kernels_of(steps)}
    kernels = {number: _load(code) for number, code in used.items()}
    address = memory.address
    made: dict[int, DeviceStep] = {}

    def call(step: DeviceStep) -> AnyCall:
        found = _call(step)
        made[id(found)] = step
        return found

    def _call(step: DeviceStep) -> AnyCall:
        match step:
            case KernelStep():
                places = tuple(address(place) for place in step.arguments)
                return Call(kernels[step.code].address, places, step.threads or ALL)
            case MoveStep():
                ends = address(step.target), address(step.source), step.nbytes
                return Move(*ends, step.target_step, step.source_step, address(step.counter))
            case LoopStep():
                limit, test, counter = map(address, (step.limit, step.test, step.counter))
                return Repeat(tuple(map(call, step.steps)), step.trips, limit, test, counter)
            case BranchStep():
                first, second = (tuple(map(call, branch)) for branch in step.steps)
                return Branch(address(step.test), (first, second))

    calls = [call(step) for step in steps]
    program = kind(
        calls,
        recipe.threads,
        max((code.shared_bytes for code in used.values()), default=0),
        max((code.local_bytes for code in used.values()), default=0),
        keep=(kernels, memory),
    )
    return program, made


_loaded: WeakValueDictionary[CodeObject, NativeKernel] = WeakValueDictionary()
"""What is loaded at present: executables of one model at several sizes share it."""


def _load(code: CodeObject) -> NativeKernel:
    found = _loaded.get(code)
    if found is None:
        found = NativeKernel(KernelCode((), code.code, None, code.shared_bytes, code.local_bytes))
        _loaded[code] = found
    return found
