"""Which elements of a buffer a bound program writes: what whoever carries it out has to write, too.

All iterations of the loops around a write are looked at together, as arrays, so this is for what is
not known to be written wholly (blocked layouts leave their padding alone), not for every program.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.ir.program import Block, If, Loop, Program, Statement, blocks, children

_Iterations = Mapping[str, NDArray[np.int64]]


def written(program: Program, name: str) -> NDArray[np.bool_]:
    """The elements of parameter `name` that the program's body writes, in its physical shape."""
    shape = [e.evaluate({}) for e in program.parameter(name).shape]
    covered = np.zeros(shape, dtype=bool)
    _mark(program.body, name, {}, 1, covered)
    return covered


def _mark(
    statement: Statement, name: str, at: _Iterations, count: int, covered: NDArray[np.bool_]
) -> None:
    """Mark what a statement writes in `count` iterations, whose loop variables are `at`."""
    if not any(block.buffer == name for block in blocks(statement)):
        return
    match statement:
        case Loop(variable=variable, extent=extent, body=body):
            trips = _values(extent, at, count)
            inner = {known: np.repeat(values, trips) for known, values in at.items()}
            ends = np.cumsum(trips)
            total = int(ends[-1]) if count else 0
            inner[variable] = np.arange(total) - np.repeat(ends - trips, trips)
            _mark(body, name, inner, total, covered)
        case If(condition, then, otherwise):
            holds = _holds(condition, at, count)
            for branch, chosen in ((then, holds), (otherwise, ~holds)):
                if branch is not None:
                    inner = {known: values[chosen] for known, values in at.items()}
                    _mark(branch, name, inner, int(chosen.sum()), covered)
        case Block():
            chosen = _holds(statement.guard, at, count)
            covered[tuple(_values(i, at, count)[chosen] for i in statement.indices)] = True
        case _:
            for child in children(statement):
                _mark(child, name, at, count, covered)


def _values(expression: Any, at: _Iterations, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.asarray(expression.evaluate(at), dtype=np.int64), (count,))


def _holds(condition: Any, at: _Iterations, count: int) -> NDArray[np.bool_]:
    holds = np.ones(count, dtype=bool)
    for expression in condition:
        holds &= _values(expression, at, count) >= 0
    return holds
