"""The family's two entries: what they return, what they refuse, and laws every answer obeys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, TargetError
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, simulate
from tilesmith.simulator.cpu import CpuSimulator
from tilesmith.simulator.cpu.features import NAMES
from tilesmith.simulator.cpu.microbenchmarks.calibration import calibrated, with_calibration

MATMUL = "matmul m=96 n=80 k=64 const=b"
CONV = "conv2d c=32 h=14 w=14 oc=32 kh=3 kw=3 pad=1 const=weight"
PEAK = 2.0 * 16
"""Multiply-adds a cycle of the described CPU: two 512-bit pipes."""


def _sampled(text: str, target: Target, count: int) -> tuple[Workload, list[Config]]:
    workload = Workload.parse(text)
    return workload, space_of(workload, target).sample(np.random.default_rng(11), count)


@pytest.mark.parametrize("text", [MATMUL, CONV])
def test_a_batch_is_its_members_one_by_one(text: str, cpu: Target) -> None:
    workload, configs = _sampled(text, cpu, 40)
    together = judge(workload, cpu, configs)
    for place, config in enumerate(configs[:12]):
        alone = judge(workload, cpu, [config])
        assert alone.latency[0] == pytest.approx(together.latency[place], rel=1e-12)
        assert alone.bound[0] == together.bound[place]
        np.testing.assert_allclose(alone.features[0], together.features[place], rtol=1e-6)


def test_judging_is_deterministic_and_keeps_the_order(cpu: Target) -> None:
    workload, configs = _sampled(CONV, cpu, 50)
    first, again = judge(workload, cpu, configs), judge(workload, cpu, configs)
    assert np.array_equal(first.latency, again.latency)
    assert np.array_equal(first.features, again.features)
    backwards = judge(workload, cpu, configs[::-1])
    np.testing.assert_allclose(backwards.latency[::-1], first.latency, rtol=1e-12)


@pytest.mark.parametrize("text", [MATMUL, CONV])
def test_nothing_is_faster_than_the_arithmetic(text: str, cpu: Target) -> None:
    """No configuration of a direct form beats flops over peak at the described clock."""
    workload, configs = _sampled(text, cpu, 60)
    direct = [c for c in configs if not str(c["algorithm"]).startswith("winograd")]
    judged = judge(workload, cpu, direct)
    least = template_of(workload.operator).flops(workload) / 2 / PEAK / 4.0e9
    assert judged.latency.min() >= least
    assert judged.features.shape == (len(direct), len(NAMES))
    assert np.isfinite(judged.features).all()


@pytest.mark.parametrize("fact", ["l2", "l3", "memory"])
def test_more_bandwidth_is_never_slower(fact: str, cpu: Target) -> None:
    workload, configs = _sampled("matmul m=512 n=768 k=768 const=b", cpu, 60)
    slow = with_calibration(cpu, {f"{fact}.bytes_per_cycle": 8.0})
    fast = with_calibration(cpu, {f"{fact}.bytes_per_cycle": 80.0})
    difference = judge(workload, slow, configs).latency - judge(workload, fast, configs).latency
    assert (difference >= 0).all()
    assert (difference > 0).any()


def test_bigger_caches_and_more_ports_are_never_slower(cpu: Target) -> None:
    workload, configs = _sampled(MATMUL, cpu, 60)
    base = judge(workload, cpu, configs).latency
    for settings in ({"l1.kib": 96, "l1.ways": 24}, {"load.ports": 4}, {"issue.width": 16}):
        other = judge(workload, cpu.with_settings(settings), configs).latency
        assert (other <= base * (1 + 1e-9)).all(), settings


def test_narrow_vectors_take_longer(cpu: Target, narrow_cpu: Target) -> None:
    workload = Workload.parse("matmul m=256 n=256 k=256 const=b")
    wide = simulate(workload, cpu)
    narrow = simulate(workload, narrow_cpu)
    assert narrow.cycles > 1.7 * wide.cycles


def test_cold_weights_cost_their_way_from_memory(cpu: Target) -> None:
    workload = Workload.parse("matmul m=64 n=1024 k=1024 const=b")
    config = default_of(workload, cpu)
    cold = CpuSimulator(weights="cold").judge(workload, cpu, [config]).latency[0]
    warm = CpuSimulator(weights="warm").judge(workload, cpu, [config]).latency[0]
    assert cold > warm


def test_threads_share_parallel_loops_but_not_perfectly(cpu: Target) -> None:
    workload = Workload.parse("matmul m=512 n=512 k=512 const=b")
    config = default_of(workload, cpu)
    one = CpuSimulator(threads=1, weights="warm").judge(workload, cpu, [config]).latency[0]
    two = CpuSimulator(threads=2, weights="warm").judge(workload, cpu, [config]).latency[0]
    assert one / 2 <= two < one


@pytest.mark.parametrize("operator", list(templates))
def test_every_operator_is_judged(operator: str, cpu: Target) -> None:
    """The model needs no code of an operator's own: all examples get a finite latency."""
    for text in template_of(operator).examples[:2]:
        workload = Workload.parse(text if text.startswith(operator) else f"{operator} {text}")
        if not is_scheduled(workload, cpu):
            pytest.skip(f"{operator} has schedules for other families only")
        judged = judge(workload, cpu, space_of(workload, cpu).sample(np.random.default_rng(1), 4))
        assert (judged.latency > 0).all(), text
        assert np.isfinite(judged.latency).all(), text


def test_simulate_says_why(cpu: Target) -> None:
    workload = Workload.parse("matmul m=512 n=512 k=512 const=b")
    result = simulate(workload, cpu)
    (op,) = result.ops
    nests = op.details["nests"]
    assert result.cycles == pytest.approx(sum(n["cycles"] for n in nests), rel=0.01)
    assert result.compute_cycles == pytest.approx(512**3 / PEAK, rel=0.01)
    assert result.bound in result.engines
    assert nests[0]["stages"] == ["c"]
    assert nests[0]["registers"] <= 32
    assert result.to_json()["ops"][0]["bound"] == result.bound


def test_a_spilling_tile_says_so(cpu: Target) -> None:
    workload = Workload.parse("depthwise_conv2d c=96 h=112 w=112 kh=3 kw=3 pad=1 const=weight")
    good = default_of(workload, cpu)
    nests = simulate(workload, cpu, Config.of({**good, "x_tile": 17})).ops[0].details["nests"]
    (conv,) = [nest for nest in nests if nest["stages"] == ["conv"]]
    assert conv["registers"] > 32
    assert conv["terms"]["spills"] > 0


def test_roofline_ignores_the_schedule(cpu: Target) -> None:
    workload = Workload.parse("matmul m=512 n=512 k=512 const=b")
    result = simulate(workload, cpu, fidelity="roofline")
    assert result.cycles == pytest.approx(512**3 / PEAK, rel=1e-6)
    assert result.bound == "compute"
    thin = simulate(Workload.parse("matmul m=1 n=1024 k=1024"), cpu, fidelity="roofline")
    assert thin.bound == "memory"


def test_what_is_refused(cpu: Target, tmp_path: Path) -> None:
    workload, configs = _sampled(MATMUL, cpu, 2)
    with pytest.raises(ConfigError, match="m_tile"):
        judge(workload, cpu, [configs[0], Config.of({**configs[0], "m_tile": 77})])
    with pytest.raises(ConfigError, match="vector registers"):
        judge(workload, cpu, [Config.of({**configs[0], "m_tile": 16, "n_vectors": 5})])
    with pytest.raises(ConfigError, match="unexpected or missing"):
        judge(workload, cpu, [configs[0], Config.of(algorithm="blocked")])
    with pytest.raises(TargetError, match="timeline"):
        simulate(workload, cpu, fidelity="timeline")
    with pytest.raises(TargetError, match="trace"):
        simulate(workload, cpu, trace=tmp_path / "trace.json")


def test_a_kept_calibration_is_read_and_a_broken_one_is_not(
    cpu: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESMITH_CALIBRATION", str(tmp_path))
    assert calibrated(cpu) is cpu
    path = tmp_path / f"{cpu.identity}.json"
    path.write_text('{"clock.ghz": 2.0, "l2.bytes_per_cycle": 20.0}')
    found = calibrated(cpu)
    assert found.number("clock.ghz") == 2.0
    assert found.identity == cpu.identity
    path.write_text('{"clock.ghz": "fast"}')
    assert calibrated(cpu) is cpu
    path.write_text("{")
    assert calibrated(cpu) is cpu
    path.write_text('{"clock.ghz": 2.0}')
    monkeypatch.setenv("TILESMITH_CALIBRATION", "off")
    assert calibrated(cpu, measure=True) is cpu


def test_the_clock_scales_the_latency(cpu: Target) -> None:
    workload, configs = _sampled(MATMUL, cpu, 5)
    slow = judge(workload, with_calibration(cpu, {"clock.ghz": 2.0}), configs).latency
    fast = judge(workload, with_calibration(cpu, {"clock.ghz": 4.0}), configs).latency
    np.testing.assert_allclose(slow, 2 * fast)


def test_neon_is_described_by_the_same_formulas() -> None:
    target = cpu_target("arm", "neon", "aarch64-unknown-linux-gnu")
    result = simulate(Workload.parse("matmul m=128 n=128 k=128 const=b"), target)
    assert result.cycles >= 128**3 / (2 * 4)


@pytest.mark.parametrize("text", [MATMUL, CONV])
def test_without_the_verdict_no_column_tells_the_latency(text: str, cpu: Target) -> None:
    workload, configs = _sampled(text, cpu, 200)
    judged = judge(workload, cpu, configs)
    told = np.corrcoef(judged.features[:, judged.verdict[0]], np.log2(judged.latency))[0, 1]
    assert told > 0.999
    left = np.delete(judged.features, list(judged.verdict), axis=1)
    left = left[:, np.ptp(left, axis=0) > 1e-4]
    likeness = np.corrcoef(left.T, np.log2(judged.latency))[-1, :-1]
    assert np.abs(likeness).max() < 0.97
