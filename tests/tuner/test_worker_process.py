"""Worker processes that somebody stops or kills: nothing of it is a candidate's fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import HANG
from problems import TARGET

from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machines.clocks import step_of, unreadable
from tilesmith.tuner.measurement.runner import RunnerOptions
from tilesmith.tuner.runners.hardware import HardwareRunner
from tilesmith.tuner.workers import worker_process
from tilesmith.tuner.workers.worker_process import WorkerProcess

WORKLOAD = Workload.parse("matmul m=24 n=16 k=32 const=b")
FINE = 16


@pytest.fixture
def runner() -> Iterator[HardwareRunner]:
    opened = HardwareRunner(RunnerOptions(TARGET, timeout_s=600, backend="fake_backend"))
    yield opened
    opened.close()


class Fate:
    """Sends a signal to each of the first workers of a runner, once `when` says so of one."""

    def __init__(
        self, worker: WorkerProcess, number: int, times: int, when: Callable[[int], bool]
    ) -> None:
        self._worker, self._number, self._times, self._when = worker, number, times, when
        self._over = threading.Event()
        self.hit: list[int] = []
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while len(self.hit) < self._times and not self._over.wait(0.001):
            process = self._worker.process_id
            if process is not None and process not in self.hit and self._when(process):
                self.hit.append(process)
                os.kill(process, self._number)

    def __enter__(self) -> Fate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def at_once(process: int) -> bool:
    """While it starts."""
    return True


def measured(runner: HardwareRunner, kind: int) -> MeasureResult:
    (found,) = runner.measure([(WORKLOAD, Config.of(m_tile=kind))])
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_killed_while_it_starts_is_started_again(
    number: int, runner: HardwareRunner
) -> None:
    with Fate(runner.worker, number, 2, at_once) as fate:
        assert measured(runner, FINE).ok
    assert len(fate.hit) == 2 and runner.worker.started == 3


def test_a_worker_that_is_always_killed_while_it_starts_ends_the_job(
    runner: HardwareRunner,
) -> None:
    with (
        Fate(runner.worker, signal.SIGKILL, 3, at_once),
        pytest.raises(JobError, match=r"could not be started: .*outside .signal SIGKILL., as 2"),
    ):
        measured(runner, FINE)


def test_a_candidate_whose_worker_is_killed_is_tried_again(runner: HardwareRunner) -> None:
    assert measured(runner, FINE).ok
    with Fate(runner.worker, signal.SIGKILL, 3, lambda _: _asked(runner)):
        result = measured(runner, HANG)
    assert result.status == "crash" and runner.worker.started == 3
    assert "killed from outside (signal SIGKILL), as 2 before it were" in result.message
    with Fate(runner.worker, signal.SIGKILL, 1, at_once):  # of the fresh one
        assert measured(runner, FINE).ok


def _asked(runner: HardwareRunner) -> bool:
    """Whether its worker is ready, and so at work."""
    return runner.worker.is_ready


def test_a_worker_that_was_stopped_is_replaced_when_its_time_is_over(
    runner: HardwareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(runner, FINE)
    monkeypatch.setattr(runner, "_timeout_s", 0.2)
    process = runner.worker.process_id
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(worker_process, "_TRIES", 1)
    result = measured(runner, FINE)
    assert result.status == "crash" and "the worker was stopped for 0.2 s" in result.message


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from tilesmith.tuner.workers.worker_process import WorkerProcess
worker = WorkerProcess({})
def tell(*_):
    print(worker.process_id, flush=True)
    sys.stdin.read()
worker._exchange = tell
worker.ask({}, 600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends a stopped orphan")
@pytest.mark.parametrize("moment", ["start-up files", "imports"])
def test_a_worker_stopped_while_it_starts_ends_with_its_parent(moment: str, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    if moment == "start-up files":
        text = f"import time; open({str(reached)!r}, 'w').close(); time.sleep(600)"
        (tmp_path / "sitecustomize.py").write_text(text)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    until = time.monotonic() + 300
    maps = Path(f"/proc/{worker}/maps")
    while not reached.exists() and "_multiarray_umath" not in maps.read_text():
        assert time.monotonic() < until, "it imports nothing"
    os.kill(worker, signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    while _lives(worker):
        assert time.monotonic() < until, "the stopped worker has survived"
        time.sleep(0.02)


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_latency_that_the_clock_cannot_tell_is_none() -> None:
    tick = 1e-3
    readings = iter(tick * (number // 3) for number in range(1000))
    assert step_of(lambda: next(readings)) == pytest.approx(tick)
    assert step_of(lambda: 7.0) == float("inf"), "a clock that stands tells nothing"

    def of(*samples: float) -> list[dict[str, object]]:
        return [result_to_json(MeasureResult("ok", "hardware", samples))]

    assert unreadable(of(1e-6, 2e-6, 2e-6), 5e-8) is None
    for samples in [(0.0, 0.0, 5e-8), (-1e-6,), (1e-8,)]:
        jump = unreadable(of(*samples), 5e-8)
        assert jump is not None and jump.spoils and "cannot tell less than 5e-08 s" in jump.message
    failed = result_to_json(MeasureResult("crash", "hardware", message="x"))
    assert unreadable([failed], 5e-8) is None


def test_no_time_at_all_is_nothing_to_store() -> None:
    from tilesmith.records.trials.record import TuningRecord

    result = MeasureResult("ok", "hardware", (0.0, 0.0, 0.0))
    with pytest.raises(JobError, match="was measured to take 0 s, which cannot be"):
        TuningRecord.of(WORKLOAD, TARGET, Config.of(m_tile=1), result)


def test_what_is_too_unsteady_to_believe_is_measured_again(
    runner: HardwareRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = iter([(1e-3, 2e-3, 9e-3), (1e-3, 1.3e-3, 2e-3), (1e-3, 1.5e-3, 9e-3), (1e-3, 1.1e-3)])

    def timed(*_: object) -> list[MeasureResult]:
        return [MeasureResult("ok", "hardware", next(samples))]

    monkeypatch.setattr(runner, "_timed", timed)
    assert measured(runner, FINE).samples == (1e-3, 1.3e-3, 2e-3), "the steadiest of three"
    assert measured(runner, FINE).samples == (1e-3, 1.1e-3), "at once"
