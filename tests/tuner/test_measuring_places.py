"""Where hardware is measured: on owned cores, beside a control kernel, by clocks that agree."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from fake_backend import CRASH
from problems import TARGET

from tilesmith.codegen.host.machine import host_target
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machine_trust.control import control_kernel
from tilesmith.tuner.machines.clocks import ClockJump
from tilesmith.tuner.machines.identity import machine_name
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.runners.hardware import HardwareRunner
from tilesmith.tuner.workers.worker_process import WorkerProcess

WORKLOAD = Workload.parse("matmul m=24 n=16 k=32 const=b")
FINE = WORKLOAD, Config.of(m_tile=16)
OPTIONS = RunnerOptions(TARGET, memory_mib=2048, backend="fake_backend")


def test_the_measuring_process_runs_on_its_cores_alone() -> None:
    core = max(os.sched_getaffinity(0))
    runner = HardwareRunner(replace(OPTIONS, cores=(core,), control=FINE))
    candidates = [FINE, (WORKLOAD, Config.of(m_tile=CRASH)), FINE]
    results = runner.measure(candidates)
    process = runner.worker.process_id
    assert process is not None and os.sched_getaffinity(process) == {core}
    runner.ahead(candidates)
    runner.close()
    assert [result.status for result in results] == ["ok", "crash", "ok"]
    assert {result.machine for result in results} == {machine_name()}
    first, crashed, last = runner.readings
    assert first and last and crashed is None, "the control kernel ran beside each trial"


class Jumping:
    """In place of a worker: its clock jumps as often as it is told."""

    def __init__(self, jumps: int, spoils: bool) -> None:
        self.left, self._jump = jumps, ClockJump(spoils, "the clock jumped by 5 s")

    def ask(self, *_: object) -> dict[str, Any]:
        result = result_to_json(MeasureResult("ok", "hardware", (1e-4,)))
        self.left -= 1
        return {"results": [result], "clock": vars(self._jump) if self.left >= 0 else None}


def measured(worker: Jumping) -> HardwareRunner:
    runner = HardwareRunner(OPTIONS)
    runner.worker.close()
    runner.worker = worker  # type: ignore[assignment]
    try:
        assert len(runner.measure([FINE])) == 1
    finally:
        runner.worker = WorkerProcess({})  # never started
        runner.close()
    return runner


def test_a_trial_during_which_the_clock_jumped_is_done_again() -> None:
    worker = Jumping(2, spoils=True)
    assert measured(worker).notices == ["the clock jumped by 5 s"] * 2
    assert worker.left == -1
    told = Jumping(1, spoils=False)
    assert measured(told).notices and told.left == 0, "a wall clock that was set spoils nothing"


def test_a_clock_that_jumps_again_and_again_is_one_sentence() -> None:
    with pytest.raises(JobError, match=r"nothing can be measured on '.*': the clock jumped by 5 s"):
        measured(Jumping(9, spoils=True))


def test_the_control_kernel_is_the_same_wherever_the_identity_is() -> None:
    target = host_target()
    assert control_kernel(target) == control_kernel(target.with_settings({"fma.ports": 1}))
    assert control_kernel(load_target("systolic")) is not None
