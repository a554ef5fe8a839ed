"""From notes to times: what every step took in every run, and in the mean of some.

Of loops some iterations may have passed unseen, as one (`compiler.timed.PASSED`). What they took is
shared out among the loop and what it runs as in the iterations that were looked at, so that steps
still add up to the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backends.timed import (
    BEGUN,
    MET,
    PASSED,
    RAN,
    STARTED,
    Notes,
    cost_of_notes,
    numbered,
)
from tilesmith.compiler.recipe.program import DeviceStep, LoopStep, Step

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepTimes:
    """What a step took, in microseconds of a run (means over the runs that are kept).

    Attributes:
        step: of the recipe; a loop's are those of its counting alone, what it runs has its own.
        us: from the end of what was before it to its own, waiting for other threads included.
        wait_us: of that, what a thread waits for the others at its end (mean of all threads).
        calls: how often it ran.
        inside: name of the loop or branch around it, "" where there is none.
    """

    step: Step
    us: float
    wait_us: float = 0.0
    calls: float = 1.0
    inside: str = ""


@dataclass(frozen=True)
class Sums:
    """Of each step in each run, (runs, steps); or of each step in the mean of runs.

    Attributes:
        took, waits: nanoseconds, of what was looked at; those of waiting.
        calls: how often it ran while somebody looked.
        begun: of a loop or branch, how often its steps began then.
        passed_ns, passed: of a loop, iterations nobody looked at, and what they took.
    """

    took: Floats
    waits: Floats
    calls: Floats
    begun: Floats
    passed_ns: Floats
    passed: Floats

    def with_waits(self, waits: Floats) -> "Sums":
        return Sums(self.took, waits, self.calls, self.begun, self.passed_ns, self.passed)


def sums_of(notes: Notes, runs: int, steps: int) -> Sums:
    """What a thread's notes of so many runs say."""
    run = np.cumsum(notes.kinds == STARTED) - 1
    took = np.diff(notes.times, prepend=notes.times[:1])
    where = run * steps + notes.steps
    named = (notes.kinds != STARTED) & (notes.steps >= 0)

    def table(kind: NDArray[np.bool_], weights: NDArray[Any] | None = None) -> Floats:
        chosen = named & kind
        weighed = None if weights is None else weights[chosen]
        sums = np.bincount(where[chosen], weighed, minlength=runs * steps)
        return sums[: runs * steps].reshape(runs, steps).astype(np.float64)

    seen, kinds = notes.kinds != PASSED, notes.kinds
    return Sums(
        table(seen, took), table(kinds == MET, took), table(kinds == RAN), table(kinds == BEGUN),
        table(~seen, took), table(~seen, notes.passed),
    )  # fmt: skip


def mean_of(blocks: Sequence[Sums], kept: NDArray[np.int64]) -> Sums:
    """Blocks of runs one behind the other, and of those that are kept the mean."""
    names = [field.name for field in fields(Sums)]
    whole = (np.concatenate([getattr(block, name) for block in blocks]) for name in names)
    return Sums(*(part[kept].mean(axis=0) for part in whole))


def step_times(
    steps: Sequence[DeviceStep], mean: Sums, cost_us: float
) -> tuple[list[StepTimes], float]:
    """Times of steps (`numbered`), and what looking cost all of them, which is taken off.

    Args:
        cost_us: what it cost a run, as far as it is these steps'.
    """
    took, waits, calls = mean.took / 1e3, mean.waits / 1e3, mean.calls.copy()
    off = np.asarray(cost_of_notes(calls.tolist(), (took - waits).tolist(), cost_us))
    took = took - off
    for number in reversed(range(len(steps))):  # loops inside others come first
        passed, seen = mean.passed[number], mean.begun[number]
        step = steps[number]
        if not passed or not isinstance(step, LoopStep):
            continue
        within = slice(number, number + 1 + sum(1 for _ in numbered(step.steps)))
        looked, unseen = float(took[within].sum()), float(mean.passed_ns[number]) / 1e3
        if not seen or looked <= 0.0:  # it never had its turn
            took[number] += unseen
            continue
        took[within] *= 1 + unseen / looked
        waits[within] *= 1 + unseen / looked
        calls[number + 1 : within.stop] *= 1 + passed / seen
    around = _around(steps)
    times = [
        StepTimes(step, float(took[n]), float(waits[n]), float(calls[n]), around.get(id(step), ""))
        for n, step in enumerate(steps)
    ]
    return times, float(off.sum())


def _around(steps: Sequence[DeviceStep]) -> dict[int, str]:
    """The innermost loop or branch around each step, by the step's identity."""
    enclosing: dict[int, str] = {}
    for step in steps:  # those outside come first
        inner = getattr(step, "steps", ())
        for one in inner:
            for each in one if isinstance(one, tuple) else (one,):
                enclosing[id(each)] = getattr(step, "name", "")
    return enclosing
