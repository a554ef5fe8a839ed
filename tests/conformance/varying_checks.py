"""What a kernel for sizes that vary must do: give numpy's numbers at every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from benchmarks.subjects.bound_kernels import VaryingKernel
from tests.conformance.template_checks import compare, expected, physical, random_inputs
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import KernelSpec
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def check_varying(
    workload: Workload,
    sizes: tuple[Size, ...],
    typical: Mapping[str, int],
    config: Config,
    rng: np.random.Generator,
    values: Iterable[Mapping[str, int]],
) -> None:
    """Compile one configuration once, run it at many sizes and compare."""
    template = template_of(workload.operator)
    kernel = VaryingKernel(KernelSpec(workload, host_target(), config, sizes, typical))
    for at in values:
        concrete = workload.at(at)
        inputs = random_inputs(concrete, rng)
        want = expected(concrete, inputs)
        got = kernel.at(at, physical(template, concrete, config, inputs))
        layout = template.layouts(concrete, config)[1]
        if layout:
            named = Layout.parse(layout)
            got = named.unpack(got.reshape(named.concrete_shape(want.shape)), want.shape)
        where = f"{concrete.key} | {config.key} | of {workload.key}"
        compare(concrete, got.reshape(want.shape), want, where)
