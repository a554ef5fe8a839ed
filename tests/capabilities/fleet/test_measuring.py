"""Workers that time trials: on cores of their own, refused or set aside by name with the reason."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.api import tune
from tilesmith.capabilities.fleet.actor import WorkerActor
from tilesmith.capabilities.fleet.runner import FleetRunner
from tilesmith.codegen.host.machine import host_target, narrowed
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machines import cores
from tilesmith.tuner.machines.cores import claim, free_cores
from tilesmith.tuner.machines.identity import Machine, machine_name

WORKLOAD = Workload.parse("matmul m=16 n=16 k=16")


@pytest.fixture(autouse=True)
def own_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of these tests are nobody else's business."""
    monkeypatch.setenv(cores.ENVIRONMENT, str(tmp_path / "cores"))


def worker_actor(target: Target) -> WorkerActor:
    return WorkerActor({"target": target.to_json(), "threads": 1, "measures": True})


@pytest.fixture
def here() -> Iterator[WorkerActor]:
    made = worker_actor(host_target())
    yield made
    made.close()


def test_a_worker_owns_its_core_and_tells_what_it_is(here: WorkerActor) -> None:
    before = free_cores()
    told = here.hello()
    assert told["refusal"] == "" and told["machine"] == machine_name()
    assert Machine.from_json(told["known"]).identity == host_target().identity
    assert len(free_cores()) == len(before) - 1
    assert here.hello()["refusal"] == "" and len(free_cores()) == len(before) - 1
    values = dict(default_of(WORKLOAD, host_target()))
    asked = {"do": "measure", "runner": "hardware", "asked": [[WORKLOAD.key, values]], "best": None}
    (answer,) = here.run([asked])
    assert answer["results"][0]["machine"] == machine_name()
    assert answer["reading"] > 0 and answer["clock"][1] > 0
    here.close()
    assert free_cores() == before


def test_without_a_free_core_or_the_instructions_it_is_refused_in_a_sentence() -> None:
    with claim(len(free_cores())):
        refusal = worker_actor(host_target()).hello()["refusal"]
    assert refusal.startswith("has no cores to measure on: 1 core to measure on is not free")
    x86 = host_target().text("isa.triple").startswith(("x86_64", "amd64"))
    foreign = "neon" if x86 else "avx2"
    refusal = worker_actor(narrowed(host_target(), foreign)).hello()["refusal"]
    assert refusal.startswith(f"has no '{foreign}' instructions: it is")


class MadeUp:
    """In place of a fleet: three workers in turn, of which one is 30 % slower."""

    def __init__(self) -> None:
        self.workers = ["a", "b", "slow"]
        self.aside: dict[str, str] = {}
        self._count = 0

    def begin(self, requests: Sequence[Any], kind: object) -> list[int]:
        return list(range(len(requests)))

    def wait(self, numbers: Sequence[int], *_: object) -> list[dict[str, Any]]:
        found = []
        for _number in numbers:
            self._count += 1
            worker = self.workers[self._count % len(self.workers)]
            pace = 1.3 if worker == "slow" else 1.0
            result = MeasureResult("ok", "hardware", (1e-3 * pace,))
            about = {"worker": worker, "sent": self._count, "received": self._count + 0.01}
            told = {"reading": 1e-4 * pace, "clock": ["boot", float(self._count)], **about}
            found.append({"results": [result_to_json(result)], **told})
        return found

    def set_aside(self, worker: str, reason: str) -> None:
        self.workers.remove(worker)
        self.aside[worker] = reason


def test_a_fleet_uses_a_worker_that_lies_no_more() -> None:
    fleet = MadeUp()
    runner = FleetRunner(fleet, "hardware")  # type: ignore[arg-type]
    candidate = (WORKLOAD, default_of(WORKLOAD, host_target()))
    for _ in range(40):
        assert len(runner.measure([candidate] * 6)) == 6
    assert list(fleet.aside) == ["slow"]
    assert "disagrees with 2 machines of the same kind" in fleet.aside["slow"]
    assert runner.doubtful() == [candidate] and runner.doubtful() == []
    assert runner.watch.pace("a") == pytest.approx(1.0)


@pytest.mark.extra
def test_two_workers_measure_on_two_cores(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    if len(free_cores()) < 2:
        pytest.skip("this machine has one core")
    database = tmp_path / "t.db"
    asked = [ts.Workload.parse(WORKLOAD.key)]
    tune(asked, "cpu", database, trials=8, measure="hardware", workers=2)
    with sqlite3.connect(database) as opened:
        counted = opened.execute("SELECT count(*), count(DISTINCT machine_id) FROM trials")
        assert counted.fetchone() >= (8, 1)
        workers = opened.execute("SELECT machine, state FROM workers").fetchall()
        assert workers == [(machine_name(), "ended")] * 2
        assert opened.execute("SELECT facts FROM machines").fetchone()[0] != ""
    opened.close()
    assert len(free_cores()) >= 2, "they let go of their cores"
