"""Faults put into code for accelerators, one at a time: what selects, schedules and links it.

What names the parts they are found in, and the models they make wrong, is `defects.DEFECTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, Unit
from tilesmith.families.lpu.codegen.scheduling.emission import BurstEmitter
from tilesmith.families.lpu.codegen.scheduling.scheduler import _Scheduler
from tilesmith.families.lpu.codegen.selection.graphs import chains
from tilesmith.families.trainium.backend import program as trainium_program
from tilesmith.families.trainium.codegen.isa.instructions import Space
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.kernel.emitter import StreamEmitter as Emitting
from tilesmith.families.trainium.codegen.linking import linker
from tilesmith.families.trainium.codegen.timing import scheduling

Patch = Callable[[pytest.MonkeyPatch], None]


def no_waiting(patch: pytest.MonkeyPatch) -> None:
    """Programs for accelerators in which one instruction does not wait for another."""
    finish = scheduling.with_semaphores

    def broken(stream: Any, *rest: Any) -> Any:
        made = finish(stream, *rest)
        if not len(made.waits):
            return made
        row = int(np.searchsorted(made.wait_start, len(made.waits) - 1, side="right")) - 1
        starts = made.wait_start.copy()
        starts[row + 1 :] -= 1
        return replace(made, wait_start=starts, waits=made.waits[:-1])

    patch.setattr(scheduling, "with_semaphores", broken)


def tiles_over_each_other(patch: pytest.MonkeyPatch) -> None:
    """Tiles of linked programs for accelerators that lie over others."""
    place = linker.place_tiles

    def broken(draft: Any, *rest: Any) -> None:
        place(draft, *rest)
        table = draft.accesses
        mine = table["space"] == Space.SBUF
        table["offset"][mine] = table["offset"][mine] // 2 // 64 * 64

    patch.setattr(linker, "place_tiles", broken)


def another_function(patch: pytest.MonkeyPatch) -> None:
    """An activation that is another, in code for accelerators."""
    activation = Kernel.activation

    def broken(self: Kernel, out: Any, function: str, *rest: Any, **named: Any) -> None:
        activation(self, out, "relu" if function == "tanh" else function, *rest, **named)

    patch.setattr(Kernel, "activation", broken)


def another_number(patch: pytest.MonkeyPatch) -> None:
    """A constant of an instruction that is another, in code for accelerators."""
    emit = Emitting._emit

    def broken(self: Any, op: Any, *rest: Any, **named: Any) -> None:
        numbers = named.get("immediates", (0.0, 0.0, 0.0))
        named["immediates"] = tuple(number + 0.1 if number == 0.5 else number for number in numbers)
        emit(self, op, *rest, **named)

    patch.setattr(Emitting, "_emit", broken)


def another_function_of_chains(patch: pytest.MonkeyPatch) -> None:
    """Selection for chips of slices takes another function."""
    expression = chains._Emission._expression

    def broken(self: Any, node: Any) -> Any:
        value = expression(self, node)
        step = self.builder.steps[value.step]
        self.builder.steps[value.step] = replace(step, operations=relu_for_tanh(step.operations))
        return value

    patch.setattr(chains._Emission, "_expression", broken)


def relu_for_tanh(operations: Any) -> Any:
    return tuple(replace(o, function="relu") if o.function == "tanh" else o for o in operations)


def another_unit(change: Callable[[Unit], Unit]) -> Patch:
    """Units of chips of slices are emitted otherwise than scheduled."""
    unit = BurstEmitter.unit
    return lambda patch: patch.setattr(
        BurstEmitter, "unit", lambda self, made: unit(self, change(made))
    )


def another_schedule(column: str, op: BurstOp) -> Patch:
    """The last burst of a kind is emitted for another cycle or address than it was placed at."""
    finished = _Scheduler.finished

    def broken(self: Any) -> Any:
        made = finished(self)
        table = made.table.copy()
        rows = np.flatnonzero(table["op"] == op)
        if len(rows):
            table[column][rows[-1]] += 1
        return replace(made, table=table)

    return lambda patch: patch.setattr(_Scheduler, "finished", broken)


def anothers_address(patch: pytest.MonkeyPatch) -> None:
    """The last of several linked kernels reads where another's result lies."""
    link = trainium_program.links

    def broken(name: str, parts: Any, *rest: Any) -> Any:
        if len(parts) > 3:
            *others, last = parts
            old = next(p for p in last.places if p is not None and p.region == "arena")
            other = next(
                p
                for part in others
                for p in part.places
                if p is not None and p.region == "arena" and p.nbytes == old.nbytes and p != old
            )
            places = tuple(other if place == old else place for place in last.places)
            parts = [*others, replace(last, places=places)]
        return link(name, parts, *rest)

    patch.setattr(trainium_program, "links", broken)
