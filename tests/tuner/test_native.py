"""Real kernels on this machine: measured in every layout, and a wrong reference is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.checking import expected, random_inputs
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.measurement.trial import Bench
from tilesmith.tuner.runners.hardware import HardwareRunner
from tilesmith.tuner.search.strata import layout_spaces

WORKLOADS = [
    "matmul m=37 n=50 k=29 const=b epilogue=bias,relu",
    "conv2d c=16 h=9 w=11 oc=32 kh=3 kw=3 pad=1 const=weight epilogue=bias,residual,relu",
    "pool2d kind=max c=16 h=8 w=8 kh=2 kw=2 stride=2",
]


@pytest.fixture(scope="module")
def runner() -> Iterator[HardwareRunner]:
    opened = HardwareRunner(RunnerOptions(host_target()))
    yield opened
    opened.close()


@pytest.mark.parametrize("text", WORKLOADS)
def test_the_default_and_a_schedule_of_every_layout_pair_run_right(
    text: str, runner: HardwareRunner
) -> None:
    workload, target = Workload.parse(text), host_target()
    template = template_of(workload.operator)
    space = space_of(workload, target)
    pairs = layout_spaces(space, lambda config: template.layouts(workload, config))
    rng = np.random.default_rng(0)
    configs = [default_of(workload, target)]
    configs += [part.sample(rng)[0] for part in pairs.values()]
    for config, result in zip(
        configs, runner.measure([(workload, c) for c in configs]), strict=True
    ):
        assert result.status in ("ok", "slow"), (str(config), result.message)
        assert result.samples[0] > 0


def test_several_threads_are_measured(runner: HardwareRunner) -> None:
    workload = Workload.parse("matmul m=64 n=64 k=64 const=b")
    opened = HardwareRunner(RunnerOptions(host_target(), threads=2))
    config = default_of(workload, host_target())
    (result,) = opened.measure([(workload, config)])
    opened.close()
    assert result.ok, result.message


def test_a_kernel_that_computes_something_else_is_wrong(tmp_path: Path) -> None:
    from tilesmith.tuner.measurement.native_backend import open_backend

    workload = Workload.parse("matmul m=16 n=16 k=16")
    inputs = random_inputs(workload)
    other = {**inputs, "b": inputs["b"] + 0.01}
    expected(workload, other, tmp_path)
    bench = Bench(open_backend(host_target(), 1), tmp_path)
    config = default_of(workload, host_target())
    result = bench.measure(workload, config, None)
    assert result.status == "wrong" and "elements are wrong" in result.message
    unheard = config.of(algorithm="unheard of")
    assert bench.measure(workload, unheard, None).status == "constraint"
