"""Jobs with workers, on a real Ray of their own: the same trials, however many there are."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from trials import rows

import tilesmith as ts
from tilesmith.api import tune
from tilesmith.capabilities.fleet.keeper import descendants
from tilesmith.jobs import extras
from tilesmith.search_space.support.errors import DependencyError, InputError

WORKLOAD = "matmul m=64 n=64 k=64"


def tuned(path: Path, workers: str | int | None, *, resume: bool = False) -> list[str]:
    tune(
        [ts.Workload.parse(WORKLOAD)],
        "trn1",
        path,
        trials=40,
        measure="simulator",
        in_flight=2,
        choosing=2,
        workers=workers,
        resume=resume,
    )
    return rows(path)


@pytest.mark.extra
def test_workers_make_the_same_trials(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    assert tuned(tmp_path / "two.db", 2) == tuned(tmp_path / "none.db", None)


@pytest.mark.extra
@pytest.mark.skipif(sys.platform != "linux", reason="orphans have no keeper elsewhere")
def test_a_killed_driver_leaves_no_process_and_its_job_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    path = tmp_path / "killed.db"
    words = ["tune", "--op", WORKLOAD, "--target", "trn1", "--measure", "simulator"]
    words += ["--trials", "40", "--in-flight", "2", "--choosing", "2"]
    words += ["--database", str(path), "--workers", "1"]
    driver = subprocess.Popen([sys.executable, "-m", "tilesmith", *words], stderr=subprocess.PIPE)
    assert driver.stderr is not None and driver.stderr.readline()  # of its first trial
    below = descendants(driver.pid)
    driver.kill()
    driver.communicate()
    until = time.monotonic() + 300
    while left := [process for process in below if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < until, f"{len(left)} of {len(below)} processes are left"
        time.sleep(0.05)
    assert len(below) >= 4 and len(rows(path)) >= 1
    assert tuned(path, None, resume=True) == tuned(tmp_path / "whole.db", None)


@pytest.mark.parametrize("workers", ["0", "-1", "two", "ray://host", "http://host:1"])
def test_what_workers_cannot_be_is_said(tmp_path: Path, workers: str) -> None:
    with pytest.raises(InputError, match=rf"workers = '{workers}' is not understood"):
        tuned(tmp_path / "x.db", workers)
    assert not (tmp_path / "x.db").exists()


def test_a_replay_needs_no_workers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a replay looks results up"):
        tune([ts.Workload.parse(WORKLOAD)], "trn1", tmp_path / "x.db", measure="replay", workers=2)


def test_without_ray_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install 'tilesmith\[ray\]'"):
        tuned(tmp_path / "x.db", 2)


@pytest.mark.extra
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 'ray://127\.0\.0\.1:1'"):
        tuned(tmp_path / "x.db", "ray://127.0.0.1:1")
