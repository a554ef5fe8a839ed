"""How long each kernel of an executable takes where it stands: after its neighbours, in its memory.

What a kernel takes by itself, measured again and again, leaves out what its neighbours have done to
the caches. Here all kernels run in their order, each by a call of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.executable import Executable
from tilesmith.compiler.program import KernelStep

Times = list[tuple[KernelStep, tuple[float, ...]]]


def kernel_times(executable: Executable, inputs: Mapping[str, NDArray[Any]], runs: int) -> Times:
    """Every kernel with its seconds in each of `runs` runs, in order.

    Empty for models with anything else in them: what the host or loops compute must not be read
    before it is there.
    """
    recipe = executable.recipe
    steps = [step for step in recipe.steps if isinstance(step, KernelStep) and not step.checks]
    if len(steps) < len(recipe.steps):
        return []
    taken: list[list[float]] = [[] for _ in steps]
    given = executable.check(inputs)
    with executable.workspace() as work:
        values = work.put(given)
        work.runner(steps)(values)
        calls = [work.runner((step,)) for step in steps]
        for _ in range(runs):
            for call, seconds in zip(calls, taken, strict=True):
                start = time.perf_counter()
                call(values)
                seconds.append(time.perf_counter() - start)
    return [(step, tuple(seconds)) for step, seconds in zip(steps, taken, strict=True)]
