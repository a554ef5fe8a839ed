"""Every registered template keeps its contract, on its own examples.

The tests walk over the registry, so a new operator file is covered by being there.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.template_checks import check_config
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import find_scheduler, is_scheduled
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload

NATIVE = [name for name in templates if find_scheduler(name, "cpu") is not None]
"""Operators with a schedule for this machine; `test_accelerator_templates` runs the others."""


EXAMPLES = [
    text
    for name in NATIVE
    for text in templates[name].examples
    if is_scheduled(Workload.parse(text), host_target())
]


@pytest.mark.parametrize("name", list(templates))
def test_every_template_has_examples_of_its_own(name: str) -> None:
    assert templates[name].operator == name
    assert templates[name].summary
    assert templates[name].examples
    assert all(text.split()[0] == name for text in templates[name].examples)


@pytest.mark.parametrize("name", list(templates))
def test_an_unknown_or_missing_parameter_is_named(name: str) -> None:
    with pytest.raises(WorkloadError, match="no_such_parameter"):
        Workload.of(name, {"no_such_parameter": 1})
    required = [p.name for p in templates[name].parameters if p.default is None]
    if required:
        with pytest.raises(WorkloadError, match=f"needs {required[0]}="):
            Workload.of(name, {})


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_key_gives_the_workload_back(text: str) -> None:
    workload = Workload.parse(text)
    assert Workload.parse(workload.key) == workload
    assert Workload.parse(workload.key).digest == workload.digest


@pytest.mark.parametrize("text", EXAMPLES)
def test_sizes_and_operations_are_sane(text: str) -> None:
    workload = Workload.parse(text)
    template = template_of(workload.operator)
    assert template.flops(workload) >= 0
    assert all(extent >= 1 for o in template.operands(workload) for extent in o.shape)
    assert template.channel_axis(workload) >= 0 or not template.output(workload).shape


@pytest.mark.parametrize("text", EXAMPLES)
def test_configurations_compute_the_reference(text: str) -> None:
    workload, target = Workload.parse(text), host_target()
    rng = np.random.default_rng(abs(hash(len(text))) % 1000)
    configs = {default_of(workload, target)}
    configs.update(space_of(workload, target).sample(rng, 2))
    for config in sorted(configs, key=lambda c: c.key):
        verify(lowered(workload, target, config), target)
        check_config(workload, config, rng)


@pytest.mark.parametrize("name", NATIVE)
def test_three_threads_compute_the_reference(name: str) -> None:
    workload, target = Workload.parse(templates[name].examples[0]), host_target()
    config = default_of(workload, target)
    check_config(workload, config, np.random.default_rng(0), threads=3)
