"""Steps as a native program: kernels loaded, places as addresses, steps as calls of the driver.

Kernels' code is linked once, however many programs and executables run it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.programs.driver import (
    ALL,
    AnyCall,
    Branch,
    KernelCall,
    MemoryMove,
    NativeProgram,
    Repeat,
)
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import (
    BranchStep,
    CodeObject,
    DeviceStep,
    KernelStep,
    LoopStep,
    MoveStep,
    Place,
    Recipe,
    kernels_of,
)

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


@dataclass(frozen=True, eq=False)
class _Loaded:
    """The address of a kernel's function, and what holds its code."""

    address: int
    keep: Any


_loaded: WeakValueDictionary[CodeObject, _Loaded] = WeakValueDictionary()
"""What is loaded at present: executables of one model at several sizes share it."""


def _load(code: CodeObject) -> _Loaded:
    kernel = _loaded.get(code)
    if kernel is None:
        toolchain.check_loadable(code.code)
        addresses, keep = toolchain.load(code.code, host_target(), f"kernel{id(code)}", ("run",))
        _loaded[code] = kernel = _Loaded(addresses["run"], keep)
    return kernel


def calls_of(
    steps: Iterable[DeviceStep],
    functions: Mapping[int, int],
    address: Callable[[Place], int],
    steps_of_calls: dict[int, DeviceStep] | None = None,
) -> tuple[AnyCall, ...]:
    """The calls, in order.

    Args:
        functions: what to call, by the number of the code.
        address: of a place; 0 for none.
        made: takes the step of each call, by the call's identity.
    """

    def call(step: DeviceStep) -> AnyCall:
        entry = _call(step)
        if steps_of_calls is not None:
            steps_of_calls[id(entry)] = step
        return entry

    def _call(step: DeviceStep) -> AnyCall:
        match step:
            case KernelStep():
                places = tuple(address(place) for place in step.arguments)
                return KernelCall(functions[step.code], places, step.threads or ALL)
            case MoveStep():
                ends = address(step.target), address(step.source), step.nbytes
                moved = step.target_step, step.source_step
                return MemoryMove(*ends, *moved, address(step.counter))
            case LoopStep():
                limit, test, counter = map(address, (step.limit, step.test, step.counter))
                return Repeat(tuple(map(call, step.steps)), step.trips, limit, test, counter)
            case BranchStep():
                first, second = (tuple(map(call, branch)) for branch in step.steps)
                return Branch(address(step.test), (first, second))

    return tuple(map(call, steps))
