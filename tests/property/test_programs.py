"""Every operator on every family: its programs keep the rules of the IR and mean the operator.

The tests walk over templates and targets, so a new operator or target is covered by being there.
Programs are verified symbolic (once for each structure) and bound; small ones are interpreted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance.accelerator_checks import check
from tests.conformance.family_checks import SHIPPED
from tests.conformance.template_checks import expected, physical, random_inputs
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, lowered, space_of, structure_program
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload

CPU = cpu_target("avx512", "avx512", "x86_64-unknown-linux-gnu")
TARGETS = {CPU.name: CPU, **{target.name: target for target in SHIPPED}}
SAMPLES = 1
"""Configurations besides the default of the first target of each family; of others, which differ in
numbers alone, the default."""
SMALL = 4000
"""Operations of a workload whose programs are interpreted, at most."""


def scheduled(operator: str, target: Target, samples: int) -> Iterator[tuple[Workload, Config]]:
    """The examples of an operator that have schedules on a target: the default, and some more."""
    template = template_of(operator)
    for text in template.examples:
        workload = Workload.parse(text)
        if not is_scheduled(workload, target):
            continue
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        drawn = space_of(workload, target).sample(rng, samples)
        for config in [default_of(workload, target), *drawn]:
            yield workload, config


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
@pytest.mark.parametrize("operator", list(templates))
def test_programs_verify(operator: str, target: Target) -> None:
    first = next(t for t in TARGETS.values() if t.family == target.family)
    for workload, config in scheduled(operator, target, SAMPLES if target is first else 0):
        structure = space_of(workload, target).structure(config)
        verify(structure_program(workload, target, structure), target)
        verify(lowered(workload, target, config), target)


@pytest.mark.parametrize("target", [TARGETS["trn1"], TARGETS["systolic"]], ids=["trn1", "systolic"])
@pytest.mark.parametrize("operator", list(templates))
def test_programs_mean_their_operator(operator: str, target: Target) -> None:
    """CPU programs are compared with the native code of the same configurations elsewhere."""
    template = template_of(operator)
    for workload, config in scheduled(operator, target, 1):
        points = [int(np.prod(operand.shape)) for operand in template.operands(workload)]
        if template.flops(workload) + sum(points) > SMALL or workload.dtype == "bfloat16":
            continue
        program = lowered(workload, target, config)
        inputs = random_inputs(workload, np.random.default_rng(0))
        want = expected(workload, inputs)
        given = physical(template, workload, config, inputs)
        arrays = {
            b.name: given[b.name].reshape([e.constant or 0 for e in b.shape])
            for b in program.parameters
            if b.role == "input"
        }
        found = interpret(program, arrays)[program.parameters[-1].name]
        layout = template.layouts(workload, config)[1]
        shape = template.output(workload).shape
        if layout:
            named = Layout.parse(layout)
            found = named.unpack(found.reshape(named.concrete_shape(shape)), shape)
        np.testing.assert_allclose(
            found.reshape(want.shape), want, rtol=1e-4, atol=1e-4, err_msg=f"{workload} | {config}"
        )


def test_a_short_tile_that_is_read_backwards_stays_inside() -> None:
    """Its last tile would begin 60 elements before the tensor's row."""
    target = TARGETS["trn1"]
    workload = Workload.parse("slice shape=3x131 starts=2x130 sizes=2x44 steps=-1x-3")
    config = Config.of(algorithm="scalar", at=0, block=32, copies=1, rows="0")
    verify(lowered(workload, target, config), target)
    check(workload, config, np.random.default_rng(0))
