"""Every template runs on a Trainium-like core, or says in a sentence why one workload cannot.

The tests walk over the registry, so a new operator file is covered by being there.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.conformance.accelerator_checks import TARGET, check
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, simulate

PACKED = ("conv2d", "depthwise_conv2d")
"""Operators whose weights are packed at compile time; `tests/families/trainium` executes them."""

REFUSED = {
    "pool2d kind=average c=5 h=8 w=35 kh=3 kw=2 stride=2 pad=1 ceil=1": "divides a mean",
}
"""Examples that have no schedule there, and what is said."""

EXAMPLES = [
    text
    for name in templates
    for text in templates[name].examples
    if name not in PACKED and text not in REFUSED
]


def computes_on_integers(text: str) -> bool:
    """Whether engines would have to compute on whole numbers: they do in fp32 only."""
    workload = Workload.parse(text)
    return "int" in workload.dtype and template_of(workload.operator).flops(workload) > 0


def has_schedule(text: str) -> bool:
    """Whether the operator was given a schedule for these targets; it may be for CPUs only."""
    return is_scheduled(Workload.parse(text), TARGET)


RUN = [text for text in EXAMPLES if not computes_on_integers(text) and has_schedule(text)]

SCHEDULED = {
    "attention", "concat", "conv2d", "depthwise_conv2d", "elementwise", "gather", "layer_norm",
    "layout_transform", "matmul", "pad", "pool2d", "reduce", "resize", "rms_norm", "slice",
    "softmax", "transpose",
}  # fmt: skip
"""Operators that run there."""


def test_operators_keep_their_schedules() -> None:
    assert {text.split()[0] for text in RUN} >= SCHEDULED - set(PACKED)
    assert all(has_schedule(templates[name].examples[0]) for name in PACKED)


@pytest.mark.parametrize("text", RUN)
def test_configurations_compute_the_reference(text: str) -> None:
    workload = Workload.parse(text)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    space = space_of(workload, TARGET)
    configs = {default_of(workload, TARGET), *space.sample(rng, 2)}
    for config in sorted(configs, key=lambda c: c.key):
        space.validate(config)
        check(workload, config, rng)


@pytest.mark.parametrize("text", RUN)
def test_fidelities_keep_their_order(text: str) -> None:
    workload = Workload.parse(text)
    floor = simulate(workload, TARGET, None, "roofline").latency_us
    config = default_of(workload, TARGET)
    assert floor <= judge(workload, TARGET, [config]).latency[0] * 1e6 * 1.01
    assert floor <= simulate(workload, TARGET, config, "timeline").latency_us * (1 + 1e-9)


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_schedule_is_refused_in_a_sentence(text: str) -> None:
    workload = Workload.parse(text)
    with pytest.raises(WorkloadError, match=REFUSED[text]):
        default_of(workload, TARGET)
