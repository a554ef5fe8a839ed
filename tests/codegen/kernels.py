"""Helpers of these tests: compile a schedule for a target and run it on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.expressions.scalar import Scalar
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

HOST = host_target()
LANES = vector_width(HOST)
Arrays = Mapping[str, NDArray[Any]]


def narrowed(isa: str) -> Target:
    """This machine, restricted to a smaller vector instruction set."""
    return cpu_target(isa, isa, HOST.text("isa.triple"))


def native(schedule: Schedule, arrays: Arrays, target: Target = HOST) -> NDArray[Any]:
    """The output of a schedule, compiled and run here."""
    kernel = NativeKernel(compile_program(lower(schedule), target))
    return kernel(arrays)


def interpreted(schedule: Schedule, arrays: Arrays) -> NDArray[Any]:
    """The output of a schedule by the interpreter."""
    program = lower(schedule)
    return interpret(program, arrays)[program.parameters[-1].name]


def same(
    schedule: Schedule, arrays: Arrays, target: Target = HOST, tolerance: float = 1e-6
) -> None:
    """Assert that native code and interpreter agree."""
    found, expected = native(schedule, arrays, target), interpreted(schedule, arrays)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def pointwise(extent: int, value: Scalar, tensors: Mapping[str, str] | None = None) -> Schedule:
    """y[i] = value over i < extent; `tensors` are inputs of that length by name and dtype."""
    i = axis("i", extent)
    inputs = tuple(Tensor(name, (extent,), dtype) for name, dtype in (tensors or {}).items())
    dtype = inputs[0].dtype if inputs else "float32"
    stage = Stage("y", (i,), value, dtype=dtype)
    return Schedule(ComputeDefinition("pointwise", inputs, (stage,)))


def vectorized(schedule: Schedule, lanes: int = LANES) -> Schedule:
    """The same with `i` cut into vectors."""
    return schedule.split("y", "i", lanes, "io", "lane").vectorize("y", "lane")
