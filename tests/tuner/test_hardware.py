"""The hardware runner: whatever a candidate does costs one trial. Workers are real processes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import ABORT, CHATTY, CRASH, GREEDY, HANG, NAN, REFUSED, SLOW, WRONG, FakeBackend
from problems import TARGET

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement import trial
from tilesmith.tuner.measurement.checking import random_inputs
from tilesmith.tuner.measurement.runner import PARTS, RunnerOptions
from tilesmith.tuner.runners.hardware import HardwareRunner
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.workers.builders import Builders
from tilesmith.tuner.workers.worker import _look
from tilesmith.tuner.workers.worker_process import WorkerProcess

WORKLOAD = Workload.parse("matmul m=24 n=16 k=32 const=b")
FINE = 16
RNG = np.random.default_rng(0)
OPTIONS = RunnerOptions(TARGET, timeout_s=3.0, memory_mib=2048, backend="fake_backend")


def config(kind: int) -> Config:
    return Config.of(m_tile=kind)


@pytest.fixture(scope="module")
def runner() -> Iterator[HardwareRunner]:
    opened = HardwareRunner(OPTIONS)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [
        (CRASH, "crash", "the worker died .signal SIGSEGV."),
        (ABORT, "crash", "the worker died .signal SIGABRT."),
        (HANG, "timeout", "no result within 3 s"),
        (GREEDY, "crash", "out of memory"),
        (WRONG, "wrong", r"1 of 384 elements are wrong; at \(3, 5\) it computed"),
        (NAN, "wrong", r"at \(0, 0\) it computed nan"),
        (REFUSED, "compile", "no code came of it"),
    ],
)
def test_a_bad_candidate_costs_exactly_one_trial(
    runner: HardwareRunner, kind: int, status: str, message: str
) -> None:
    before, bad, after = runner.measure([(WORKLOAD, config(k)) for k in (FINE, kind, FINE)])
    assert (before.status, bad.status, after.status) == ("ok", status, "ok")
    assert re.search(message, bad.message), bad.message
    assert bad.latency is None and bad.measured_by == "hardware"


def test_both_cache_states_are_recorded_and_output_of_candidates_is_harmless(
    runner: HardwareRunner,
) -> None:
    other = Workload.parse("matmul m=24 n=16 k=16 const=b")  # no faster one is known of it
    (result,) = runner.measure([(other, config(CHATTY))])
    assert result.ok and len(result.samples) >= 5 and result.warm_samples
    assert result.latency is not None and 0 < result.latency < result.elapsed


def test_a_candidate_three_times_slower_than_the_best_is_aborted(runner: HardwareRunner) -> None:
    runner.expect(WORKLOAD, 1e-3)
    (result,) = runner.measure([(WORKLOAD, config(SLOW))])
    assert result.status == "slow" and result.samples[0] >= 0.02
    assert result.latency is None and "over 3 x the best known" in result.message


def test_what_trials_cost_is_told_by_part() -> None:
    fresh = HardwareRunner(OPTIONS)
    fresh.measure([(WORKLOAD, config(kind)) for kind in (FINE, REFUSED, CRASH, FINE)])
    fresh.close()
    costs = fresh.costs
    assert len(costs.totals) == 4
    assert sum(costs.parts.values()) == pytest.approx(sum(costs.totals))
    assert all(costs.parts[name] > 0 for name in (*PARTS, "other"))
    told = costs.milliseconds()
    assert sum(told[name] for name in costs.parts) == pytest.approx(told["mean"])


def test_tasks_that_take_turns_keep_their_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(workload: Workload) -> dict[str, Any]:
        drawn.append(workload)
        return random_inputs(workload)

    monkeypatch.setattr(trial, "random_inputs", draw)
    workloads = [Workload.parse(f"matmul m=24 n=16 k={k} const=b") for k in (8, 16, 24)]
    bench = trial.Bench(FakeBackend(), tmp_path)
    for workload in workloads * 2:
        assert bench.measure(workload, config(FINE), None).ok
    assert drawn == workloads
    monkeypatch.setattr(trial, "_KEPT_BYTES", 1)
    for workload in workloads[:2] * 2:
        assert bench.measure(workload, config(FINE), None).ok
    assert len(drawn) > 5, "but not more than there is room for"


@pytest.fixture
def builders(tmp_path: Path) -> Iterator[tuple[Builders, WorkerProcess]]:
    setup = {
        "backend": "tilesmith.tuner.measurement.native_backend",
        "target": host_target().to_json(),
        "threads": 1,
        "folder": str(tmp_path),
        "memory_mib": 2048,
    }
    measuring = WorkerProcess(setup)
    opened = Builders(measuring, setup, 60.0, processes=2)
    yield opened, measuring
    opened.close()
    measuring.close()


def test_code_is_made_by_another_process_and_taken_by_the_one_that_measures(
    tmp_path: Path, builders: tuple[Builders, WorkerProcess]
) -> None:
    makers, measuring = builders
    good = [(WORKLOAD, c) for c in space_of(WORKLOAD, host_target()).sample(RNG, 2)]
    bad = (WORKLOAD, Config.of(m_tile=10**6))
    makers.ahead([bad, good[1]])
    makers.ready(good[0], None)
    assert measuring.started == 0, "the first is made where it is measured"
    for candidate in (bad, good[1]):
        makers.ready(candidate, None)
    (code,) = tmp_path.glob("*.code")
    request = {"workload": WORKLOAD.key, "config": dict(good[1][1]), "incumbent": None}
    (result,) = measuring.ask({"measure": request}, 60.0)["results"]
    made = code.read_bytes()
    assert result["status"] == "ok", "and its code is there when it is compared with rivals"
    lost = {**request, "incumbent": 1e-12}
    (result,) = measuring.ask({"measure": lost}, 60.0)["results"]
    assert made and result["status"] == "slow" and not code.exists(), "what has lost needs none"


def test_where_builders_disturb_nobody_makes_code_while_something_is_measured(
    tmp_path: Path, builders: tuple[Builders, WorkerProcess]
) -> None:
    makers, measuring = builders
    for number in range(15):
        makers.read(1e-3 * (1 + 0.001 * (number % 3)), beside=False)
        makers.read(1.01e-3 * (1 + 0.001 * (number % 5)), beside=True)
    assert not makers.is_alone, "a hundredth is no matter"
    for number in range(15):
        makers.read(1.05e-3 * (1 + 0.001 * (number % 5)), beside=True)
    assert makers.is_alone
    batch = [(WORKLOAD, c) for c in space_of(WORKLOAD, host_target()).sample(RNG, 4)]
    makers.ahead(batch)
    for number, candidate in enumerate(batch):
        makers.ready(candidate, None)
        assert not makers.is_at_work
        assert len(list(tmp_path.glob("*.code"))) > number
    assert measuring.started == 1, "it made code while the other did"


def test_whoever_computes_beside_them_has_the_core_of_a_builder(
    tmp_path: Path, builders: tuple[Builders, WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesmith.tuner.workers.builders.cores", lambda: 2)
    makers, measuring = builders
    batch = [(WORKLOAD, c) for c in space_of(WORKLOAD, host_target()).sample(RNG, 3)]
    with makers.beside():
        makers.ahead(batch)
        assert makers.is_at_work
        time.sleep(0.2)
        makers.ready(batch[0], None)
        assert not list(tmp_path.glob("*.code")), "it is left to the process that measures"
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.code"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(tmp_path.glob("*.code"))) == 2 and measuring.started == 0


@pytest.fixture
def beside() -> Iterator[HardwareRunner]:
    opened = HardwareRunner(replace(OPTIONS, timeout_s=60))
    opened.in_flight = 1  # whatever the number of cores here
    yield opened
    opened.close()


def test_what_is_begun_is_measured_in_order_beside_its_caller(beside: HardwareRunner) -> None:
    kinds = (FINE, WRONG, REFUSED, FINE)
    begun = [beside.begin([(WORKLOAD, config(kind))]) for kind in kinds]
    rivals = beside.compare([(WORKLOAD, config(FINE))])
    assert rivals[0].ok, "rivals have their turn between two candidates"
    assert beside.busy_s > 0 and not beside.readings, (
        "what was seen beside a trial counts when it is finished"
    )
    results = [beside.finish(one)[0] for one in begun]
    assert [result.status for result in results] == ["ok", "wrong", "compile", "ok"]
    assert len(beside.costs.totals) == len(beside.readings) == 4


def test_what_is_begun_ends_with_the_time_or_when_it_is_cancelled(beside: HardwareRunner) -> None:
    token = CancelToken()
    batch = [(WORKLOAD, config(kind)) for kind in (HANG, FINE, FINE)]
    hanging, late, given_up = [beside.begin([candidate], token) for candidate in batch]
    assert beside.finish(late, token, time.monotonic()) == []
    beside.abandon(given_up)
    threading.Timer(0.3, token.cancel).start()
    assert beside.finish(hanging, token) == []
    assert not beside.costs.totals and not beside._begun


def test_rivals_are_compared_in_turns_and_a_failure_stays_one(runner: HardwareRunner) -> None:
    batch = [(WORKLOAD, config(kind)) for kind in (FINE, WRONG, CHATTY)]
    first, wrong, second = runner.compare(batch)
    assert len(first.samples) == len(second.samples) >= 10
    assert wrong.status == "wrong"
    assert runner.compare([]) == []


class Paced:
    """In place of a worker: it says how long the reference took, where it is asked to."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = iter(seconds)
        self.references: list[Any] = []

    def ask(self, request: dict[str, Any], *_: object) -> dict[str, Any]:
        self.references.append(request["reference"])
        result = result_to_json(MeasureResult("ok", "hardware", (1e-4,)))
        look = None if request["reference"] is None else next(self._seconds)
        return {"results": [result], "look": look}


def test_drift_of_the_machine_is_watched_beside_every_trial() -> None:
    runner = HardwareRunner(OPTIONS)
    runner.worker.close()
    paced = Paced([1e-4] * 35 + [1.3e-4] * 20)
    runner.worker = paced  # type: ignore[assignment]
    assert len(runner.measure([(WORKLOAD, config(FINE))] * 56)) == 56
    quick = {"workload": WORKLOAD.key, "config": dict(config(FINE))}
    assert paced.references == [None] + [quick] * 55
    assert (runner.looks, runner.moved) == (2, pytest.approx(0.3))
    assert (runner.pace, runner.drift) == (pytest.approx(1.3), pytest.approx(0.3))
    runner.worker = WorkerProcess({})  # never started
    runner.close()


def test_the_reference_stays_loaded_and_its_failure_costs_nothing(tmp_path: Path) -> None:
    bench = trial.Bench(FakeBackend(), tmp_path)
    assert bench.look(WORKLOAD, config(FINE)) > 0
    kept = bench._reference
    assert bench.measure(WORKLOAD, config(FINE), None).ok
    assert bench.look(WORKLOAD, config(FINE)) > 0 and bench._reference is kept
    broken = {"workload": WORKLOAD.key, "config": dict(config(REFUSED))}
    assert _look(bench, broken) is None and _look(bench, None) is None


def test_a_crashing_rival_does_not_take_the_others_with_it(runner: HardwareRunner) -> None:
    results = runner.compare([(WORKLOAD, config(kind)) for kind in (FINE, CRASH, FINE)])
    assert [result.status for result in results] == ["ok", "crash", "ok"]


def test_cancelling_ends_a_hanging_trial_at_once_and_keeps_the_finished() -> None:
    token = CancelToken()

    class CancelledAfterTheFirst(HardwareRunner):
        def expect(self, workload: Workload, latency: float) -> None:
            threading.Timer(0.5, token.cancel).start()

    patient = CancelledAfterTheFirst(replace(OPTIONS, timeout_s=600))
    start = time.monotonic()
    results = patient.measure([(WORKLOAD, config(k)) for k in (FINE, HANG, FINE)], token)
    assert [result.status for result in results] == ["ok"]
    assert time.monotonic() - start < 300, "it waited for the hanging trial"
    assert patient.measure([(WORKLOAD, config(FINE))], token) == []
    patient.close()


def test_workers_are_renewed_and_leave_no_process_behind(tmp_path: Path) -> None:
    setup = {
        "backend": "fake_backend",
        "target": TARGET.to_json(),
        "threads": 1,
        "folder": str(tmp_path),
        "memory_mib": 2048,
    }
    worker = WorkerProcess(setup, renew_after=2)
    request = {"measure": {"workload": WORKLOAD.key, "config": {"m_tile": FINE}, "incumbent": None}}
    seen = set()
    for _ in range(4):
        worker.ask(request, 20)
        seen.add(worker.process_id)
    assert worker.started == 2
    worker.close()
    for process in seen - {None}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_worker_that_cannot_start_is_a_job_error() -> None:
    broken = HardwareRunner(replace(OPTIONS, backend="no_such_backend"))
    with pytest.raises(JobError, match=r"could not be started: .*no_such_backend"):
        broken.measure([(WORKLOAD, config(FINE))])
    broken.close()
