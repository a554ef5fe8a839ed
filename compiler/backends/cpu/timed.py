"""Timed steps on CPUs: `codegen.native.timing` with steps for calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilesmith.codegen.native.timing import Clock, TimedProgram
from tilesmith.compiler.areas import Memory
from tilesmith.compiler.backends.cpu.linking import linked
from tilesmith.compiler.program import DeviceStep, Recipe
from tilesmith.compiler.timed import AROUND, BEGUN, Notes, numbered


class CpuTimedSteps:
    """See `compiler.timed.TimedSteps`."""

    def __init__(self, recipe: Recipe, steps: Sequence[DeviceStep], memory: Memory) -> None:
        self._program, calls = linked(TimedProgram, recipe, steps, memory)
        number = {id(step): place for place, step in enumerate(numbered(steps))}
        rows = {row: number[id(calls[id(call)])] for row, call in self._program.rows.items()}
        self._addresses = np.array(sorted(rows), dtype=np.int64)
        self._numbers = np.array([rows[int(row)] for row in self._addresses], dtype=np.int64)
        self._clock = Clock()

    def run(self) -> None:
        self._program.run()

    def forget(self) -> None:
        self._program.forget()

    def reserve(self, notes: int) -> None:
        self._program.reserve(notes)

    def notes(self) -> list[Notes]:
        self._clock.stop()
        found = []
        for noted in self._program.notes():
            places = np.searchsorted(self._addresses, noted.rows)
            numbers = self._numbers[np.minimum(places, self._numbers.size - 1)]
            steps = np.where(noted.kinds == BEGUN, AROUND, numbers)
            found.append(Notes(steps, noted.kinds, self._clock.at(noted.ticks), noted.lost))
        return found
