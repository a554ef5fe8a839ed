"""`finish`: every pass between a bound program and code: trivial loops, tails, then conditions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilesmith.search_space.ir.program import Program, Statement
from tilesmith.search_space.ir.transforms.ragged import finish_tails, within_ranges
from tilesmith.search_space.ir.transforms.simplification import peel_tails, simplify
from tilesmith.search_space.ir.transforms.specialisation import decide, specialise


def finish(program: Program) -> Program:
    """The same program, with constant extents wherever code generators need them.

    Raises:
        ScheduleError: a loop would be unrolled as often as a size says.
    """

    return _varying(program) if program.sizes else _finished(program)


@lru_cache(maxsize=8)
def _varying(program: Program) -> Program:
    """Kept for who verifies it, as it takes seconds where short tiles come in many lengths."""
    return _finished(within_ranges(program))


def _finished(program: Program) -> Program:
    def peeled(statement: Statement) -> Statement:
        return simplify(peel_tails(simplify(statement)))

    def decided(statement: Statement) -> Statement:
        return specialise(decide(statement))

    prologue = decided(peeled(program.prologue)) if program.prologue is not None else None
    whole = replace(program, body=peeled(program.body), prologue=prologue)
    if program.sizes:
        whole = finish_tails(whole)
    return replace(whole, body=decided(whole.body))
