"""What threads share, measured; and calibrations that were kept before it was."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.microbenchmarks import calibration, shared_machine


def test_an_older_calibration_is_completed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_target()
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(shared_machine, "_cores", lambda: 2)
    facts = {"clock.ghz": 9.0, "fma.rate": 1.0, "memory.cores": 1.25, "barrier.cycles": 300.0}
    monkeypatch.setattr(calibration, "microbenchmarks", lambda target: facts)
    kept = tmp_path / f"{host.identity}.json"
    kept.write_text('{"clock.ghz": 2.5, "fma.rate": 1.5}')
    assert "memory.cores" not in calibration.calibrated(host), "nothing is measured unasked"
    machine = CpuCore.of(calibration.calibrated(host, measure=True), threads=2)
    assert (machine.ghz, machine.shared, machine.barrier) == (2.5, (2.0, 1.25), 300.0)
    assert json.loads(kept.read_text()) == {**facts, "clock.ghz": 2.5, "fma.rate": 1.5}


def test_a_calibration_whose_clock_was_derived_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_target()
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path))
    facts = {"clock.ghz": 3.6, "fma.rate": 1.0, "l2.bytes_per_cycle": 25.0, "barrier.cycles": 300.0}
    monkeypatch.setattr(calibration, "microbenchmarks", lambda target: facts)
    kept = tmp_path / f"{host.identity}.json"
    kept.write_text('{"clock.ghz": 1.8, "l2.bytes_per_cycle": 50.0, "barrier.cycles": 150.0}')
    assert calibration.calibrated(host).number("clock.ghz") == 1.8, "nothing is measured unasked"
    assert calibration.calibrated(host, measure=True).number("clock.ghz") == 3.6
    assert json.loads(kept.read_text()) == facts


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
