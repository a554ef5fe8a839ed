"""What every template must do on a Trainium-like core, as one function of a configuration.

Shared by the conformance tests (all templates, their own examples) and tests of single operators:
the instruction stream, executed in numpy, must match the template's float64 reference.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.conformance.template_checks import expected, physical, random_inputs
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import Template, template_of
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Of the accumulated magnitude: fp32, and 16 bits with fp32 accumulation."""


@lru_cache(maxsize=4)
def stream_of(workload: Workload, config: Config) -> InstructionStream:
    """The instructions of a configuration; kept for further inputs."""
    return instruction_stream(workload, TARGET, config)


def run(workload: Workload, config: Config, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Execute a configuration functionally; the result in its logical layout."""
    template = template_of(workload.operator)
    stream = stream_of(workload, config)
    given = _given(stream, workload, physical(template, workload, config, inputs))
    (result,) = execute(stream, given).values()
    shape, layout = template.output(workload).shape, template.layouts(workload, config)[1]
    if not layout:
        return result.reshape(shape)
    named = Layout.parse(layout)
    return named.unpack(result.reshape(named.concrete_shape(shape)), shape)


def _given(
    stream: InstructionStream, workload: Workload, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Inputs in the shapes that the stream gives them."""
    found = {}
    for tensor in stream.tensors:
        if tensor.role == "input":
            found[tensor.name] = inputs[tensor.name].reshape(tensor.shape)
    return found


def wide(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """bfloat16 as float32, which numpy knows; `expected` widens further."""
    return {n: x.astype(np.float32) if x.dtype.kind == "V" else x for n, x in inputs.items()}


def magnitude(template: Template, workload: Workload, inputs: dict[str, np.ndarray]) -> float:
    """The largest sum of absolute terms that enters an element, epilogue apart."""
    size = {n: np.abs(x) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    return float(np.abs(template.reference(workload, size)).max())


def check(workload: Workload, config: Config, rng: np.random.Generator) -> None:
    """Execute and compare one configuration."""
    template = template_of(workload.operator)
    inputs = random_inputs(workload, rng)
    got = run(workload, config, inputs)
    inputs = wide(inputs)
    want = expected(workload, inputs)
    assert got.dtype == to_numpy(template.output(workload).dtype)
    assert got.shape == want.shape, (workload.key, got.shape, want.shape)
    where = f"{workload.key} | {config.key}"
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    scale = max(magnitude(template, workload, inputs), float(np.abs(want).max()))
    error = float(np.abs(got.astype(np.float64) - want).max())
    assert error <= TOLERANCE[workload.dtype] * scale, (where, error, scale)
