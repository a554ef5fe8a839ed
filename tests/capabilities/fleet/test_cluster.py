"""Jobs on a cluster whose nodes come and go, and whose processes die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from trials import rows

import tilesmith as ts
from benchmarks.fleet_kills import worker_processes
from tilesmith.api import tune
from tilesmith.records import Database
from tilesmith.search_space.results import versions
from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.session.progress import Progress

WORKLOAD = "matmul m=512 n=512 k=512"


def tuned(path: Path, workers: str | None, observer: Any = None) -> list[str]:
    tune(
        [ts.Workload.parse(WORKLOAD)],
        "trn1",
        path,
        trials=336,
        measure="simulator",
        strategy="random",
        in_flight=4,
        workers=workers,
        observer=observer,
    )
    return rows(path)


class Fate:
    """A node joins, a process dies, a node goes away, each at its trial."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._due = [(8, self._add), (100, self._kill), (220, self._remove)]
        self.seen: set[tuple[str, str, str]] = set()

    def __call__(self, progress: Progress) -> None:
        self.seen |= {(one.name, one.state, one.message) for one in progress.workers}
        if self._due and progress.trials >= self._due[0][0]:
            self._due.pop(0)[1]()

    def _add(self) -> None:
        self._node = self._cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    def _kill(self) -> None:
        os.kill(worker_processes(os.getpid())[0], signal.SIGKILL)

    def _remove(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)


def test_workers_come_and_go_and_the_trials_are_the_same(cluster: Any, tmp_path: Path) -> None:
    fate, path = Fate(cluster), tmp_path / "cluster.db"
    assert tuned(path, "ray", fate) == tuned(tmp_path / "here.db", None)
    assert not fate._due
    with Database.open(str(path)) as database:
        kept = database.workers(1)
    assert [one.name.rpartition("/")[2] for one in kept] == ["1", "2"]
    assert sum(one.trials for one in kept) >= 336
    assert any(name.endswith("/2") for name, state, _ in fate.seen if state == "busy")


def test_workers_of_other_versions_are_not_used(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "SPACE", "0")
    with pytest.raises(JobError, match=r"no worker can be used: .+/\d has space \d+ \(here 0\)"):
        tuned(tmp_path / "x.db", "ray")
