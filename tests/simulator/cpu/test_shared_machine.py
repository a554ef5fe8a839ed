"""What threads share, measured; and calibrations that were kept before it was."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.simulator.cpu.family import CpuSimulator
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.microbenchmarks import calibration, shared_machine

FACTS = {"clock.ghz": 3.6, "fma.rate": 1.0, "fma.cycles": 4.0, "barrier.cycles": 300.0}
STEADY = {"calibration.apart": 1.0, "calibration.load": 0.01}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host's calibration is kept; nobody else runs, and two cores are there."""
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(shared_machine, "_cores", lambda: 2)
    monkeypatch.setattr(calibration, "_others", lambda: 0.01)
    return tmp_path / f"{host_target().identity}.json"


def measuring(monkeypatch: pytest.MonkeyPatch, *repeats: dict[str, float]) -> None:
    """Have microbenchmarks come to these numbers, one after the other."""
    left = list(repeats)
    monkeypatch.setattr(calibration, "microbenchmarks", lambda target: left.pop(0))


def test_a_calibration_of_an_older_version_is_taken_again(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_target()
    measuring(monkeypatch, FACTS, FACTS)
    kept.write_text('{"clock.ghz": 1.8, "l2.bytes_per_cycle": 50.0, "barrier.cycles": 150.0}')
    assert calibration.calibrated(host).number("clock.ghz") == 1.8, "nothing is measured unasked"
    machine = CpuCore.of(calibration.calibrated(host, measure=True), threads=2)
    assert (machine.ghz, machine.barrier) == (3.6, 300.0)
    assert json.loads(kept.read_text()) == {**FACTS, **STEADY}
    calibration.calibrated(host, measure=True)  # nothing is left to measure


def test_the_better_of_two_repeats_counts_and_how_far_they_are_apart_is_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_target()
    slow = {"clock.ghz": 3.6, "fma.rate": 0.5, "fma.cycles": 5.0, "barrier.cycles": 250.0}
    measuring(monkeypatch, FACTS, slow)
    target = calibration.calibrated(host, measure=True)
    assert [target.number(name) for name in FACTS] == [3.6, 1.0, 4.0, 250.0]
    assert target.number("calibration.apart") == 2.0
    assert (
        "taken on a busy machine (its repeats are 2 times apart"
        in CpuSimulator().contradictions(target)[0]
    )


def test_a_disturbed_calibration_is_taken_again_once_it_is_old_and_never_made_worse(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_target()
    busy = {**FACTS, "fma.rate": 0.8, "calibration.apart": 1.0, "calibration.load": 3.0}
    kept.write_text(json.dumps(busy))
    assert calibration.calibrated(host, measure=True).number("fma.rate") == 0.8, "just taken"
    os.utime(kept, (0, 0))
    assert calibration.calibrated(host).number("fma.rate") == 0.8, "nothing is measured unasked"
    worse = {**FACTS, "clock.ghz": 3.5}
    measuring(monkeypatch, worse, worse)
    target = calibration.calibrated(host, measure=True)
    assert (target.number("fma.rate"), target.number("clock.ghz")) == (1.0, 3.6)
    os.utime(kept, (0, 0))
    assert calibration.calibrated(host, measure=True) == target, "a steady one stays"
    assert calibration.doubts(target) == []


def test_levels_that_are_faster_the_further_they_are_are_a_contradiction() -> None:
    def measured(near: float, far: float) -> list[str]:
        facts = {"l2.bytes_per_cycle": near, "l3.bytes_per_cycle": far}
        return calibration.doubts(calibration.with_calibration(host_target(), facts))

    assert measured(25.0, 27.0) == [] == measured(40.0, 20.0)
    (sentence,) = measured(10.0, 20.0)
    assert sentence.startswith("l3.bytes_per_cycle = 20 was measured, and less nearer to the core")


def test_one_core_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_machine, "_cores", lambda: 1)
    assert shared_machine.between_threads(host_target(), 1e9) == {}
    assert shared_machine.knows_threads({})


def test_calls_together_take_time() -> None:
    calls = [shared_machine.reading(host_target(), 1 << 14)[0] for _ in range(2)]
    assert shared_machine.together(calls, least_s=1e-3) > 0.0


def test_waiting_for_a_core_is_not_counted() -> None:
    assert shared_machine.together([lambda: time.sleep(0.02)], least_s=1e-3) < 0.01


def test_long_loops_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    def run(seconds: float) -> None:
        clock[0] += seconds
        calls.append(seconds)

    monkeypatch.setattr(calibration.time, "perf_counter", lambda: clock[0])
    assert calibration._fastest(lambda: run(0.125)) == 0.125
    assert len(calls) == calibration.LEAST_ROUNDS
    calls.clear()
    calibration._fastest(lambda: run(2.0**-10))
    assert len(calls) == calibration.ROUNDS


@pytest.mark.parametrize(("last", "read"), [(8, 32), (32, 128), (100, 256), (260, 520)])
def test_memory_is_read_from_beyond_the_last_cache(last: int, read: int) -> None:
    """In MiB: four times the cache, as long as that is no more than is beyond any."""
    assert shared_machine.beyond_caches(last << 20) == read << 20
