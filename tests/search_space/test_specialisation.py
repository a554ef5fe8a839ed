"""Conditions that bounds decide vanish, and the inside of a padded loop runs without tests."""

from __future__ import annotations

import numpy as np

from tilesmith.search_space.expressions.scalar import Const, Select, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Block, If, Program, Statement, walk
from tilesmith.search_space.ir.transforms.specialisation import decide, finish
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule


def padded(extent: int, before: int, after: int, unroll: int) -> Program:
    """y[i] = x[i - before], 7 outside; `unroll` elements at a time."""
    i = axis("i", extent + before + after)
    place = i.var - before
    value = Select((place, extent - 1 - place), load("x", place), Const(7.0))
    compute = ComputeDefinition("pad", (Tensor("x", (extent,)),), (Stage("y", (i,), value),))
    schedule = Schedule(compute).split("y", "i", unroll, "io", "ii").unroll("y", "ii")
    return lower(schedule)


def selects(statement: Statement) -> list[bool]:
    """For each block, whether its value tests something."""
    found = [s for s in walk(statement) if isinstance(s, Block)]
    return [isinstance(block.value, Select) for block in found]


def test_a_padded_loop_gets_a_version_without_tests() -> None:
    program = padded(40, 3, 5, 4)
    finished = finish(program)
    versions = [s for s in walk(finished.body) if isinstance(s, If)]
    assert len(versions) == 1
    assert selects(versions[0].then) == [False]
    assert versions[0].otherwise is not None
    assert selects(versions[0].otherwise) == [True]
    x = np.arange(40, dtype=np.float32)
    for each in (program, finished):
        want = np.pad(x, (3, 5), constant_values=7)
        np.testing.assert_array_equal(interpret(each, {"x": x})["y"], want)


def test_a_test_that_never_fails_vanishes() -> None:
    program = padded(40, 0, 0, 4)
    assert selects(program.body) == [True]
    assert selects(decide(program.body)) == [False]
    assert not any(isinstance(s, If) for s in walk(finish(program).body))


def test_where_every_iteration_has_a_padded_element_nothing_is_doubled() -> None:
    finished = finish(padded(2, 1, 1, 4))
    assert all(selects(finished.body))
    np.testing.assert_array_equal(
        interpret(finished, {"x": np.array([1.0, 2.0], np.float32)})["y"], [7, 1, 2, 7]
    )
