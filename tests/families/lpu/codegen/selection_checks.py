"""What every schedule for LPU-like chips must do, as one function of a configuration.

The program is selected, placed, proved free of conflicts and run; the result must be that of the
template's reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.conformance.template_checks import expected, physical, random_inputs
from tilesmith.codegen.programs.structures import lowered
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.selection.from_program import select, single_numbers
from tilesmith.families.lpu.codegen.selection.layout.accesses import shape_of
from tilesmith.families.lpu.codegen.selection.layout.images import content, image
from tilesmith.families.lpu.codegen.selection.layout.prologue import prepare
from tilesmith.families.lpu.codegen.verification.checker import check as prove
from tilesmith.families.lpu.simulator.execution.functional import execute
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("lpu1")

TOLERANCE = {"float16": 1e-3}
"""Of the accumulated magnitude; 2e-5 of float32."""


def run(workload: Workload, config: Config, inputs: dict[str, NDArray]) -> NDArray:
    """Run a configuration; the result in its logical layout."""
    template, program = template_of(workload.operator), lowered(workload, TARGET, config)
    given = physical(template, workload, config, inputs)
    held = prepare(program, {name: given[name] for name in workload.constants})
    numbers = {buffer.name: held[buffer.name] for buffer in single_numbers(program)}
    selected = select(program, TARGET, frozenset(workload.constants), numbers)
    placed = schedule(selected.dataflow, Chip.of(TARGET))
    contents = dict(selected.literals)
    *operands, result = program.parameters
    for buffer in operands:
        source = held if buffer.role == "prepared" else given
        contents[buffer.name] = image(buffer, source[buffer.name])
    rows = execute(placed, contents, matching=prove(placed)).tensors[result.name]
    found, shape = content(shape_of(result), rows), template.output(workload).shape
    name = template.layouts(workload, config)[1]
    if not name:
        return found.reshape(shape)
    layout = Layout.parse(name)
    return layout.unpack(found.reshape(layout.concrete_shape(shape)), shape)


def check(workload: Workload, config: Config, rng: np.random.Generator) -> None:
    """Run and compare one configuration."""
    template, inputs = template_of(workload.operator), random_inputs(workload, rng)
    got = run(workload, config, inputs)
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in inputs.items()}
    want, where = expected(workload, wide), f"{workload.key} | {config.key}"
    assert got.shape == want.shape, where
    assert got.dtype == to_numpy(template.output(workload).dtype), where
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    sizes = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in wide.items()}
    magnitude = np.abs(template.reference(workload, sizes)).max(initial=0)
    scale = max(1.0, float(np.abs(want).max(initial=0)), float(magnitude))
    error = float(np.abs(got.astype(np.float64) - want).max(initial=0))
    assert error <= TOLERANCE.get(workload.dtype, 2e-5) * scale, (where, error, scale)
