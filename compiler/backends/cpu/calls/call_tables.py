"""Steps of a recipe as calls of the native driver, whatever its functions and addresses are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tilesmith.codegen.native.programs.driver import (
    ALL,
    AnyCall,
    Branch,
    KernelCall,
    MemoryMove,
    Repeat,
)
from tilesmith.compiler.recipe.program import (
    BranchStep,
    DeviceStep,
    KernelStep,
    LoopStep,
    MoveStep,
    Place,
)


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
