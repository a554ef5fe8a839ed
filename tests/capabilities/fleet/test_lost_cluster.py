"""A Ray that ends under a job: noticed, and started again where it is the job's own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.capabilities.fleet import worker_pool
from tilesmith.capabilities.fleet.keeper import descendants, end_without_keeper
from tilesmith.capabilities.fleet.settings import ClusterLost, start_seconds
from tilesmith.search_space.support.errors import InputError, JobError

TARGET: Any = None


class Rays:
    """Clusters in a row, one started in the place of another."""

    def __init__(self, *, is_own: bool = True) -> None:
        self.is_own, self.restarts = is_own, 0

    def restart(self) -> None:
        self.restarts += 1


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trials each fleet has done, in their order."""
    counts: list[int] = []

    @contextmanager
    def fleet_of(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(answered=counts.pop(0))

    monkeypatch.setattr(worker_pool, "fleet_of", fleet_of)
    return counts


def searched(rays: Rays, ends: int) -> list[bool]:
    """A search that Ray ends under so many times; whether it was resumed, each time."""
    resumed: list[bool] = []

    def search(fleet: Any, again: bool) -> list[bool]:
        resumed.append(again)
        if len(resumed) <= ends:
            raise ClusterLost("Ray ended under the job: its head died; ...")
        return resumed

    pool = worker_pool.RayPool()
    return pool.searched(rays, TARGET, 1, search, measures=False)  # type: ignore[arg-type]


def test_a_ray_of_our_own_is_started_again_and_the_search_goes_on(answered: list[int]) -> None:
    rays = Rays()
    answered += [5, 0, 0, 7, 0]
    assert searched(rays, 4) == [False, True, True, True, True]
    assert rays.restarts == 4


def test_one_that_ends_again_and_again_before_anything_is_done_is_said(
    answered: list[int],
) -> None:
    rays = Rays()
    answered += [5, 0, 0, 0, 0]
    with pytest.raises(ClusterLost, match="its head died"):
        searched(rays, 9)
    assert rays.restarts == 3


def test_a_cluster_of_others_is_not_ours_to_start(answered: list[int]) -> None:
    rays = Rays(is_own=False)
    answered += [5]
    with pytest.raises(ClusterLost):
        searched(rays, 1)
    assert rays.restarts == 0


@pytest.mark.extra
def test_who_is_slow_to_answer_is_there(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="only a cluster asks")
    from tilesmith.capabilities.fleet.cluster import _listens

    path = str(tmp_path / "socket")
    assert not _listens(path), "it is not there"
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket() as other:
        stopped.bind(path)
        assert not _listens(path), "nobody listens"
        stopped.listen(0)
        assert all(_listens(path) for _ in range(3)), "nobody accepts: it is busy"
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert not _listens(address)
        other.listen()
        assert _listens(address)


def test_how_long_ray_may_take_to_start_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILESMITH_RAY_START_SECONDS", raising=False)
    assert start_seconds() == 180.0
    monkeypatch.setenv("TILESMITH_RAY_START_SECONDS", "7.5")
    assert start_seconds() == 7.5
    for wrong in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("TILESMITH_RAY_START_SECONDS", wrong)
        with pytest.raises(InputError, match=f"SECONDS is '{wrong}', not a number of seconds"):
            start_seconds()


@pytest.mark.extra
def test_a_ray_that_does_not_start_in_time_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray", reason="it is Ray that is started")
    from tilesmith.capabilities.fleet.cluster import Cluster
    from tilesmith.capabilities.fleet.settings import WorkerPlace

    monkeypatch.setenv("TILESMITH_RAY_START_SECONDS", "0.05")
    said = r"within 0\.05 s; .*said.*TILESMITH_RAY_START_SECONDS gives it more time"
    with pytest.raises(JobError, match=said):
        Cluster.open(WorkerPlace(1))


@pytest.mark.extra
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_job_outlives_its_ray_and_makes_the_same_trials(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="it is Ray that is killed")
    from trials import rows

    killed: list[int] = []

    def kill(progress: Any) -> None:
        if progress.trials < 8 or killed:
            return
        for process in descendants(os.getpid()):
            title = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"raylet/raylet" in title.split(b"\0")[0]:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    def tuned(path: Path, workers: int | None, observer: Any = None) -> list[str]:
        ts.tune(
            [ts.Workload.parse("matmul m=512 n=512 k=512")], "trn1", path,
            trials=48, measure="simulator", strategy="random", in_flight=2, workers=workers,
            observer=observer,
        )  # fmt: skip
        return rows(path)

    assert tuned(tmp_path / "killed.db", 1, kill) == tuned(tmp_path / "whole.db", None)
    assert len(killed) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_ray_whose_keeper_was_killed_is_ended_with_its_session(tmp_path: Path) -> None:
    folder = tmp_path / "tilesmith-ray-x"
    folder.mkdir()
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    starts = (  # a node manager and its agent, neither of which names the folder
        "import subprocess, sys, time; "
        f"print(subprocess.Popen({sleeps!r}, process_group=0, stdout=2).pid, flush=True); "
        "time.sleep(600)"
    )
    keeper = subprocess.Popen(
        [sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    other = subprocess.Popen(sleeps)
    assert keeper.stdout is not None
    agent = int(keeper.stdout.readline())
    keeper.kill()
    keeper.communicate()
    end_without_keeper(keeper.pid, str(folder))
    with contextlib.suppress(FileNotFoundError):  # where nobody has asked for the dead one
        assert Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    assert other.poll() is None and not folder.exists()
    other.kill()
    other.wait()
