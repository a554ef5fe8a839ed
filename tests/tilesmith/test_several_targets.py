"""One job for several targets: searches as alone, machines apart, a word on who is missing."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tests.end_to_end.command import refuse, succeed
from tilesmith.codegen.host.machine import host_target, narrowed
from tilesmith.codegen.programs.structures import default_of
from tilesmith.jobs.requests.request import TuneRequest
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.jobs.tuning.job import TuningJob, tuning_job
from tilesmith.jobs.tuning.several import NotAllTuned, Reports, _with_share, apart, tune_for
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import CodegenError, InputError, TargetError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.native_backend import NativeBackend
from tilesmith.tuner.tasks.cancel import CancelToken

WORKLOAD = Workload.parse("matmul m=32 n=32 k=32")
TARGETS = ("cpu:sse", "cpu:neon", "trn1")
QUICK: dict[str, Any] = {"trials": 6, "measure": "simulator", "strategy": "random"}


def request(database: Path, **more: Any) -> TuneRequest:
    asked = {"database": database, **QUICK, **more}
    return TuneRequest([WORKLOAD], **asked)


def tuned(database: Path, *targets: str, **more: Any) -> Reports:
    return tune_for(request(database, **more), targets, time.monotonic())


def lines(database: Path) -> list[str]:
    with Database.open(str(database)) as opened:
        found = [json.loads(line) for line in list(opened.export_lines())[1:]]
    for trial in found:
        for name in ("created_at", "elapsed_s", "host"):
            trial.pop(name, None)
    return sorted(json.dumps(trial, sort_keys=True) for trial in found)


def test_each_target_is_searched_as_alone_in_a_series_of_its_own(tmp_path: Path) -> None:
    together, alone = tmp_path / "together.db", tmp_path / "alone.db"
    reports = tuned(together, *TARGETS)
    identities = [resolve_target(name).identity for name in TARGETS]
    assert list(reports) == identities
    assert all(report.trials >= 6 for report in reports.values())
    for name in TARGETS:
        ts.tune([WORKLOAD], name, alone, **QUICK)
    assert lines(together) == lines(alone)
    with Database.open(str(together)) as opened:
        for identity in identities:
            assert opened.best(WORKLOAD, identity) is not None
        assert [job.status for job in opened.jobs()] == ["finished"] * len(TARGETS)


def jobs(tmp_path: Path, *targets: Target) -> list[TuningJob]:
    return [tuning_job(replace(request(tmp_path / "x.db"), target=t), 0.0) for t in targets]


def test_targets_of_different_machines_run_side_by_side_others_in_turn(tmp_path: Path) -> None:
    here = host_target()
    narrow, arm = narrowed(here, "sse"), narrowed(here, "neon")
    found = apart(jobs(tmp_path, here, arm, narrow), {"x86": here, "arm": arm})
    groups = [[job.target.identity for job in group] for group in found]
    assert sorted(groups) == sorted([[arm.identity], [here.identity, narrow.identity]])


def test_a_target_that_nobody_can_measure_is_told_with_all_reasons(tmp_path: Path) -> None:
    here = host_target()
    other = here.with_settings({"l2.kib": 4 * here.integer("l2.kib")})
    with pytest.raises(TargetError) as refused:
        apart(jobs(tmp_path, here, other), {"box-1": here, "box-2": narrowed(here, "neon")})
    said = str(refused.value)
    assert f"no worker can measure for target '{other.identity}': box-1 is another machine" in said
    assert "; box-2 has no '" in said
    with pytest.raises(TargetError, match="there is none"):
        apart(jobs(tmp_path, here), {})


def test_the_time_is_shared_evenly(tmp_path: Path) -> None:
    asked = request(tmp_path / "x.db", trials=None, time_limit=90.0)
    job = tuning_job(asked, time.monotonic())
    limit = _with_share(job, 3).options.time_limit_s
    assert limit is not None and 20.0 < limit <= 30.0
    assert _with_share(job, 1) == job


def test_what_is_named_twice_or_stopped_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the target 'cpu' is named twice: 'cpu-"):
        tuned(tmp_path / "x.db", "cpu", "trn1", "cpu")
    assert not (tmp_path / "x.db").exists()
    token = CancelToken()
    token.cancel("SIGINT")
    with pytest.raises(NotAllTuned, match="2 of 2 targets were not tuned to the end") as stopped:
        tune_for(request(tmp_path / "y.db"), ("cpu", "trn1"), time.monotonic(), None, token)
    assert "stopped by SIGINT" in str(stopped.value) and stopped.value.reports == {}


def test_resuming_leaves_finished_targets_alone(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    tuned(database, "trn1")
    with Database.open(str(database)) as opened:
        count = opened.stats()["trials"]
    reports = tuned(database, "trn1", "cpu:neon", resume=True)
    assert list(reports) == [resolve_target("cpu:neon").identity]
    with Database.open(str(database)) as opened:
        assert opened.stats()["trials"] == 2 * count


def test_targets_are_found_in_the_database_by_identity_and_by_machine(tmp_path: Path) -> None:
    arm = resolve_target("cpu:neon")
    database = str(tmp_path / "t.db")
    with Database.open(database) as opened:
        opened.register_target(arm)
        kept = {"clock.ghz": 2.5}
        opened.note_machine("pi-1", host="pi", target=arm.identity, calibration=kept)
    assert resolve_target(arm.identity, database=database) == arm
    calibrated = resolve_target("pi-1", database=database)
    assert calibrated.identity == arm.identity and calibrated.number("clock.ghz") == 2.5
    with pytest.raises(TargetError, match="unknown target 'pi-2'"):
        resolve_target("pi-2", database=database)


def test_code_is_made_for_processors_that_are_elsewhere() -> None:
    x86 = host_target().text("isa.triple").startswith(("x86_64", "amd64"))
    target = narrowed(host_target(), "neon" if x86 else "avx2")
    config = default_of(WORKLOAD, target)
    backend = NativeBackend(target, 1)
    code = backend.build(WORKLOAD, config)
    machine = 183 if x86 else 62  # ELF's numbers of AArch64 and x86-64
    start = code.index(b"\x7fELF")
    assert int.from_bytes(code[start + 18 : start + 20], "little") == machine
    assert code == NativeBackend(target, 1).build(WORKLOAD, config), "the same wherever it is made"
    with pytest.raises(CodegenError, match="cannot be loaded on"):
        backend.load(WORKLOAD, config, {}, None)  # type: ignore[arg-type]


def test_on_the_command_line(tmp_path: Path) -> None:
    tune = ("tune", "--op", WORKLOAD.key, "--database", str(tmp_path / "t.db"), "--trials", "4")
    both = ("--target", "cpu:neon", "--target", "trn1", "--measure", "simulator")
    told = succeed(*tune, *both)
    assert [len(report["tasks"]) for report in told["targets"].values()] == [1, 1]
    assert "unknown target 'cpu9'" in refuse(*tune, "--target", "trn1", "--target", "cpu9")
