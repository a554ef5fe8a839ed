"""What every family of targets must do with an operator, whatever its machine.

A kernel is put into a model of nothing else, which is compiled with one configuration pinned and
run as any model is: so a family with a backend is checked through the doors that everybody uses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.conformance.template_checks import expected, random_inputs
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.graph.graph import Graph, TensorInfo, kernel
from tilesmith.compiler.numerics.precision import in_precision, precision_dtype
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target, load_target, target_names
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

ROOFLINE = "peak"
"""The table of facts by which targets are known of which no more than a roofline is public."""

SHIPPED = [
    target
    for target in map(load_target, target_names())
    if all(not name.startswith(f"{ROOFLINE}.") for name, _ in target.facts)
    and target.family != host_target().family
]
"""Targets that can be scheduled for; of processors this machine stands for all."""

TARGETS = {target.family: target for target in (*reversed(SHIPPED), host_target())}
"""The first target of every family that can be scheduled for, of those on CPUs this machine."""

TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 3e-2}


def alone(workload: Workload, inputs: dict[str, NDArray]) -> Graph:
    """A model of one kernel; its constant operands are the model's."""
    template = template_of(workload.operator)
    output = template.output(workload)
    infos = [TensorInfo(o.name, o.dtype, o.shape) for o in template.operands(workload)]
    result = TensorInfo("result", output.dtype, output.shape)
    return Graph(
        name="alone",
        nodes=(kernel(workload, [info.name for info in infos], result.name, "kernel"),),
        inputs=tuple(info for info in infos if not workload.is_constant(info.name)),
        outputs=(result,),
        tensors={info.name: info for info in (*infos, result)},
        constants={name: inputs[name] for name in workload.constants},
        opsets={"": 17},
    )


def check_config(
    workload: Workload, target: Target, config: Config, rng: np.random.Generator
) -> None:
    """Compile, run and compare one configuration."""
    inputs = random_inputs(workload, rng)
    dtype = precision_dtype(backends[target.family].computes_in)
    inside = in_precision(workload, dtype, only="float32")

    def pinned(graph: Graph) -> dict[Workload, Config]:
        """Families may merge axes of a kernel that stands alone."""
        made = [node.workload for node in graph.nodes if node.workload is not None]
        return {one: config for one in made if one.operator == inside.operator}

    model = build(alone(workload, inputs), target, pinned=pinned)
    (step,) = [
        s for s in model.recipe.steps if getattr(s, "workload", "").startswith(inside.operator)
    ]
    default = default_of(Workload.parse(step.workload), target)
    if config != default:  # which takes the layouts that suit the model
        assert step.config == config.key
    given = {info.name: inputs[info.name] for info in model.inputs}
    (got,) = model.run(given).values()
    wide = {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in inputs.items()}
    want = expected(workload, wide)
    assert got.shape == want.shape
    assert got.dtype == to_numpy(template_of(workload.operator).output(workload).dtype)
    where = f"{target.name} | {workload.key} | {config.key}"
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    sums = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in wide.items()}
    added_up = np.abs(template_of(workload.operator).reference(workload, sums))
    scale = max(1.0, float(np.abs(want).max(initial=0)), float(added_up.max(initial=0)))
    error = float(np.abs(got.astype(np.float64) - want).max(initial=0))
    assert error <= TOLERANCE[inside.dtype] * scale, (where, error, scale)
