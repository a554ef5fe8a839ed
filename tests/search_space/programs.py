"""Helpers of these tests: run a schedule through lowering, verification and interpretation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

Arrays = Mapping[str, NDArray[Any]]


def inputs_of(compute: ComputeDefinition, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Random inputs of small integers, so that any order of summation gives the same floats."""
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(-4, 5, t.shape).astype(np.float32)
        for t in compute.inputs
        if t.values is None
    }


def lowered(
    schedule: Schedule, symbols: Mapping[str, int] | None = None, target: Target | None = None
) -> Program:
    """Lower, verify (symbolic and bound), bind."""
    program = lower(schedule)
    verify(program, target)
    bound = program.bind(symbols or {})
    verify(bound, target)
    return bound


def result(program: Program, arrays: Arrays) -> NDArray[Any]:
    """The output buffer after interpreting a program, in its physical layout."""
    return interpret(program, arrays)[program.parameters[-1].name]


def check(
    schedule: Schedule,
    expected: NDArray[Any],
    arrays: Arrays,
    symbols: Mapping[str, int] | None = None,
    target: Target | None = None,
) -> Program:
    """Assert that a schedule computes `expected`, before and after code generation's passes."""
    bound = lowered(schedule, symbols, target)
    finished = finish(bound)
    verify(finished, target)
    for program in (bound, finished):
        np.testing.assert_allclose(result(program, arrays), expected, rtol=1e-6)
    return bound
