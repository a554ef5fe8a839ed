"""The contract between families and those who ask: declared defaults, failures by row."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import space_of
from tilesmith.families.trainium.simulator import family, skeletons
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import FamilySimulator, Judgement, measure, simulators
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner

WORKLOAD, TRN1 = Workload.parse("matmul m=128 n=256 k=64"), load_target("trn1")
FEATURES = np.zeros((2, 1), np.float32)


@pytest.mark.parametrize("name", list(simulators))
def test_every_family_fulfils_the_contract(name: str) -> None:
    simulator = simulators[name]
    assert isinstance(simulator, FamilySimulator)
    measures = type(simulator).measure is not FamilySimulator.measure
    assert simulator.judges_as_measured == (not measures)


def test_a_row_has_either_a_latency_or_a_failure() -> None:
    refused = {1: MeasureResult("lowering", "simulator", message="why")}
    Judgement(np.array([1.0, np.nan]), FEATURES, ["dma", ""], failures=refused)
    for latency, failures in (([1.0, np.inf], {}), ([1.0, np.nan], {}), ([1.0, 2.0], refused)):
        with pytest.raises(AssertionError, match="either a latency or a failure"):
            Judgement(np.array(latency), FEATURES, ["dma", ""], failures=failures)


def test_what_no_code_comes_of_keeps_its_kind_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration fails among others: its row says why, the others are as without it."""
    space = space_of(WORKLOAD, TRN1)
    configs = list(dict.fromkeys(space.sample(np.random.default_rng(0), 3)))
    usual, made = measure(WORKLOAD, TRN1, configs), skeletons.staged_stream

    def refusing(workload: Workload, target: Target, config: Config) -> object:
        if config == configs[1]:
            raise CodegenError("no instruction does this")
        return made(workload, target, config)

    monkeypatch.setattr(family, "staged_stream", refusing)
    found = measure(WORKLOAD, TRN1, configs)
    assert set(found.failures) == {1} and np.isnan(found.latency[1])
    np.testing.assert_array_equal(found.latency[[0, 2]], usual.latency[[0, 2]])
    results = SimulatorRunner(RunnerOptions(TRN1)).measure([(WORKLOAD, c) for c in configs])
    assert [result.status for result in results] == ["ok", "compile", "ok"]
    assert results[1].message == "no instruction does this" and results[1].latency is None


def test_what_takes_no_time_is_no_measurement() -> None:
    """An array of one element counts its first cycle as 0."""
    settings = {"array.rows": 1, "array.cols": 1, "dataflow": "os"}
    tiny, workload = (
        load_target("systolic").with_settings(settings),
        Workload.parse("matmul m=1 n=1 k=1"),
    )
    config = scheduler_of(workload, tiny).default(workload, tiny)
    (result,) = SimulatorRunner(RunnerOptions(tiny)).measure([(workload, config)])
    assert result.status == "constraint" and "no time" in result.message
