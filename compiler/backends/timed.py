"""Linked steps that write down when each of them ran: what a backend gives to be looked at.

What a note names lies between it and the note before, so that the notes of a thread add up to the
time from its first to its last. Invariant: the steps are numbered as `numbered` gives them, those
of bodies behind the loop or branch that they are in.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from tilesmith.compiler.recipe.program import BranchStep, DeviceStep, LoopStep

AROUND = -1
"""Number of what is no step: the way into a program."""

RAN, MET, BEGUN, STARTED, PASSED = range(5)
"""Kinds of notes: a step is over; all threads met after it; a loop or branch, which the note names,
begins its steps; the whole of the steps begins; iterations of a loop are over that nobody looked
at."""


NOTE_US = 0.015
"""What a note takes at most: reading the counter, two stores."""


def cost_of_notes(calls: Sequence[float], us: Sequence[float], cost: float) -> list[float]:
    """What looking cost each step: of every call as much, never more than a note can take.

    Args:
        calls: of each step.
        us: microseconds that it took, of which its cost is a part.
        cost: what looking cost a run, in microseconds; what is measured may be below 0.
    """
    each = min(max(0.0, cost) / max(sum(calls), 1.0), NOTE_US)
    return [min(each * often, max(0.0, took)) for often, took in zip(calls, us, strict=True)]


def numbered(steps: Iterable[DeviceStep]) -> Iterator[DeviceStep]:
    """Steps in the order of their numbers."""
    for step in steps:
        yield step
        match step:
            case LoopStep():
                yield from numbered(step.steps)
            case BranchStep():
                for branch in step.steps:
                    yield from numbered(branch)
            case _:
                pass


@dataclass(frozen=True)
class Notes:
    """What a thread wrote down, in order.

    Attributes:
        steps: numbers of steps, or `AROUND`.
        kinds: `RAN`, `MET`, `BEGUN`, `STARTED` or `PASSED`.
        times: nanoseconds of `time.perf_counter_ns`.
        lost: how many notes there was no room for.
        passed: iterations, of `PASSED`.
    """

    steps: NDArray[Any]
    kinds: NDArray[Any]
    times: NDArray[Any]
    lost: int
    passed: NDArray[Any]


class TimedSteps(Protocol):
    """Steps linked to their memory."""

    def run(self) -> None:
        """Run them; notes are added to those that there are."""

    def every(self, nth: int) -> None:
        """Look at every nth iteration of loops alone, the others as one."""

    def forget(self) -> None:
        """Begin the notes anew."""

    def reserve(self, notes: int) -> None:
        """Make room for so many notes of each thread; begins them anew."""

    def notes(self) -> list[Notes]:
        """Those of each thread."""
