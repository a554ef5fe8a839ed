"""Timed steps on CPUs: `codegen.native.timing` with steps for calls."""

from collections.abc import Iterator, Sequence

import numpy as np

from tilesmith.codegen.native.programs import walking
from tilesmith.codegen.native.programs.timing import Clock, TimedProgram
from tilesmith.compiler.backends.cpu.linking import linked
from tilesmith.compiler.backends.timed import AROUND, BEGUN, PASSED, STARTED, Notes, numbered
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import BranchStep, DeviceStep, LoopStep, Recipe


class CpuTimedSteps:
    """See `compiler.timed.TimedSteps`."""

    def __init__(self, recipe: Recipe, steps: Sequence[DeviceStep], memory: RunMemory) -> None:
        self._program, calls = linked(TimedProgram, recipe, steps, memory)
        number = {id(step): place for place, step in enumerate(numbered(steps))}
        rows = {row: number[id(calls[id(call)])] for row, call in self._program.rows.items()}
        self._addresses = np.array([0, *sorted(rows)], dtype=np.int64)
        self._numbers = np.array([AROUND, *(rows[row] for row in sorted(rows))], dtype=np.int64)
        around = {
            number[id(inner)]: number[id(step)]
            for step in numbered(steps)
            for inner in _first_inside(step)
        }
        self._around = np.array([*(around.get(n, AROUND) for n in range(len(number))), AROUND])
        self._start = self._program.start
        self._clock = Clock()

    def run(self) -> None:
        self._program.run()

    def every(self, nth: int) -> None:
        self._program.every(nth)

    def forget(self) -> None:
        self._program.forget()

    def reserve(self, notes: int) -> None:
        self._program.reserve(notes)

    def notes(self) -> list[Notes]:
        self._clock.stop()
        notes = []
        for noted in self._program.notes():
            places = np.searchsorted(self._addresses, noted.rows, side="right") - 1
            exact = self._addresses[places] == noted.rows  # tables of nothing have no rows
            steps = np.where(exact, self._numbers[places], AROUND)
            begun = noted.kinds == BEGUN
            of_loop = begun | (noted.kinds == walking.PASSED)
            steps = np.where(of_loop, self._around[steps], steps)
            started = begun & (noted.rows == self._start)
            passed = noted.kinds == walking.PASSED
            kinds = np.where(passed, PASSED, np.where(started, STARTED, noted.kinds))
            notes.append(Notes(steps, kinds, self._clock.at(noted.ticks), noted.lost, noted.passed))
        return notes


def _first_inside(step: DeviceStep) -> Iterator[DeviceStep]:
    """The first steps of each body of a loop or branch."""
    match step:
        case LoopStep(steps=inner):
            yield from inner[:1]
        case BranchStep(steps=branches):
            for branch in branches:
                yield from branch[:1]
        case _:
            pass
