"""`tilesmith db`, as scripts and people meet it: JSON keys, tables, CSV, exit codes, sentences."""

from __future__ import annotations

import csv
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.command_line import command_line
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

SMALL = Workload.parse("matmul m=16 n=32 k=8 const=b")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command_line, ["db", *map(str, arguments)])


def succeed(*arguments: object) -> Any:
    """Run with --json; the one object on stdout."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refuse(*arguments: object, code: int = 2) -> str:
    """Run what must fail: the one sentence it says."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("tilesmith: ") and "internal error" not in sentence
    return sentence


def record(latency: float | None = 1e-3, workload: str = SMALL.key, **more: Any) -> TuningRecord:
    """A record of this machine with the default schedule of `SMALL`."""
    target = host_target()
    config = more.pop("config", default_of(SMALL, target))
    samples = () if latency is None else (latency,)
    result = MeasureResult("crash" if latency is None else "ok", "hardware", samples, "signal 11")
    return TuningRecord(workload, target.identity, config, result, **more)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of three workloads (one unknown here), a failure, a job and this machine."""
    path = tmp_path / "tuning.db"
    with Database.open(str(path)) as opened:
        job = opened.start_job(
            "tilesmith tune x", seed=0, strategy="random", targets=[host_target()]
        )
        opened.add([record(), record(2e-3, config=Config.of(tile=1))], job=job)
        opened.add([record(None, config=Config.of(tile=2)), record(3e-3, "future x=1")])
    return path


def test_top_lists_the_best_of_each_workload(database: Path) -> None:
    records = succeed("top", "--database", database)["records"]
    assert [r["workload"] for r in records] == ["future x=1", SMALL.key]
    assert records[1]["latency_s"] == 1e-3 and records[1]["stale"] is False
    assert records[1]["gflops"] == pytest.approx(2 * 16 * 32 * 8 / 1e-3 / 1e9)
    assert records[0]["gflops"] is None, "an operator unknown here has no count of operations"
    found = succeed("top", SMALL.key, "--database", database, "--limit", 1)["records"]
    assert [r["latency_s"] for r in found] == [1e-3]
    assert succeed("top", "--operator", "conv2d", "--database", database)["records"] == []
    assert "no working schedule" in invoke("top", "--operator", "x", "--database", database).stderr
    table = invoke("top", "--database", database).stdout
    assert SMALL.key in table and "1000.00" in table and "GFLOP/s" in table


def test_jobs_tells_who_runs_what(database: Path) -> None:
    with Database.open(str(database)) as opened:
        running = opened.start_job("tilesmith tune y  # digest", seed=1, strategy="random")
        opened.beat(running, {"trials_per_s": 12.5})
        done = opened.start_job("tilesmith tune z", seed=1, strategy="random")
        opened.finish_job(done, "interrupted", "by SIGINT")
        found = {job["id"]: job for job in succeed("jobs", "--database", database)["jobs"]}
        assert list(found) == [done, running, 1], "the newest first"
        assert [job["state"] for job in found.values()] == ["interrupted", "running", "dead"]
        assert [job["trials"] for job in found.values()] == [0, 0, 2]
        assert [job["resumable"] for job in found.values()] == [True, False, True]
        assert found[running]["owner"].endswith(f":{os.getpid()}")
        assert found[running]["trials_per_s"] == 12.5 and 0 <= found[running]["silent_s"] < 60
        told = invoke("jobs", "--database", database)
        assert "12.5" in told.stdout and "digest" not in told.stdout
        assert "run by nobody: 3, 1; their commands with --resume go on" in told.stderr
        (dead,) = succeed("jobs", "--database", database, "--state", "dead")["jobs"]
        assert dead["id"] == 1


def test_query_filters_sorts_and_writes_csv(database: Path) -> None:
    def latencies(*options: object) -> list[float | None]:
        records = succeed("query", "--database", database, *options)["records"]
        return [r["latency_s"] for r in records]

    assert latencies() == [3e-3, None, 2e-3, 1e-3]
    assert latencies("--sort", "fastest", "--limit", 2) == [1e-3, 2e-3]
    assert latencies("--status", "failed") == [None]
    assert latencies("--message", "signal") == [3e-3, None, 2e-3, 1e-3]
    assert latencies("--workload", "matmul*const", "--slower-than", 1500) == [2e-3]
    assert latencies("--operator", "matmul", "--faster-than", 1500) == [1e-3]
    assert latencies("--since", "2100-01-01") == latencies("--until", "2000-01-01") == []
    assert latencies("--job", 1) == [2e-3, 1e-3]
    assert latencies("--config", '"tile":2', "--latest") == [None]
    text = invoke("query", "--database", database, "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["status"] for row in rows] == ["ok", "crash", "ok", "ok"]
    assert json.loads(rows[2]["config"]) == {"tile": 1}
    assert float(rows[3]["latency_s"]) == 1e-3 and json.loads(rows[3]["samples"]) == [1e-3]


def test_show_prints_the_code_a_record_stands_for(database: Path) -> None:
    shown = succeed("show", 1, "--database", database, "--program", "--llvm", "--assembly")
    assert shown["workload"] == SMALL.key and shown["toolchain"]["tilesmith"]
    assert "c.register" in shown["program"]
    assert "define void @run(" in shown["llvm"]
    assert "run:" in shown["assembly"]
    plain = invoke("show", 1, "--database", database, "--program").stdout
    assert "samples" in plain and "c.register" in plain and "define" not in plain
    assert "no record 77" in refuse("show", 77, "--database", database)
    assert "unknown operator 'future'" in refuse("show", 4, "--database", database, "--program")
    assert "tile=1" in refuse("show", 2, "--database", database, "--llvm")


def test_show_without_a_described_target_or_on_an_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    trn1 = load_target("trn1")
    result = MeasureResult("ok", "simulator", (1e-3,))
    with Database.open(str(path)) as opened:
        for identity in ("trn1-00000000", trn1.identity, "box-00000000"):
            opened.add([TuningRecord(SMALL.key, identity, Config.of(tile=1), result)])
    assert "does not describe target" in refuse("show", 1, "--database", path, "--program")
    assert "has no assembly" in refuse("show", 2, "--database", path, "--assembly")
    assert "unknown target 'box'" in refuse("show", 3, "--database", path, "--program")


def test_stats_has_the_keys_scripts_rely_on(database: Path) -> None:
    stats = succeed("stats", "--database", database)
    assert (stats["trials"], stats["workloads"], stats["targets"], stats["jobs"]) == (4, 2, 1, 1)
    assert stats["by_status"] == {"ok": 3, "crash": 1}
    assert "tilesmith tune x" in invoke("stats", "--database", database).stdout


def test_export_import_merge_diff(database: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "out.jsonl", tmp_path / "copy.db"
    assert succeed("export", "-o", file, "--database", database)["exported"] == 4
    assert invoke("export", "--database", database).stdout == file.read_text()
    part = invoke("export", "--database", database, "--operator", "future").stdout.splitlines()
    assert len(part) == 2 and json.loads(part[1])["workload"] == "future x=1"
    (report,) = succeed("import", file, "--database", copy)["files"].values()
    assert (report["added"], report["duplicates"]) == (4, 0)
    (report,) = succeed("merge", database, "--database", copy)["sources"].values()
    assert (report["added"], report["duplicates"], report["conflict_count"]) == (0, 4, 0)
    with Database.open(str(copy)) as opened:
        opened.add([record(5e-4, config=Config.of(tile=9))])
    found = succeed("diff", copy, "--database", database)["differences"]
    assert [(d["workload"], d["ratio"]) for d in found] == [(SMALL.key, 0.5), ("future x=1", 1.0)]
    assert found[0]["second"]["config"] == {"tile": 9}
    assert succeed("diff", database, copy)["differences"] == found
    assert "name two databases" in refuse("diff", copy)
    told = invoke("diff", copy, "--database", database)
    assert "0.5" in told.stdout and "future" not in told.stdout, "what is the same is counted"
    assert "2 workloads and targets: 1 faster in" in told.stderr and "1 the same" in told.stderr
    told = succeed("diff", copy, "--database", database)
    assert (told["summary"]["second_faster"], told["summary"]["same"]) == (1, 1)
    assert [d["kind"] for d in told["differences"]] == ["second_faster", "same"]
    assert "no difference between" in invoke("diff", database, database).stderr
    assert "4 were there already" in invoke("merge", database, "--database", copy).stdout


def test_export_writes_into_a_pipe_and_leaves_devices_alone(database: Path, tmp_path: Path) -> None:
    pipe, whole = tmp_path / "pipe", tmp_path / "whole.jsonl"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_text)
        succeed("export", "--database", database, "-o", pipe)
    succeed("export", "--database", database, "-o", whole)
    assert read.result() == whole.read_text()
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []
    full = Path("/dev/full")
    assert "No space left" in refuse("export", "--database", database, "-o", full, code=1)
    assert full.is_char_device()


@pytest.mark.parametrize(
    "asked",
    [
        ("query", "--threads", 10**20), ("query", "--job", 10**20), ("query", "--offset", 10**20),
        ("query", "--limit", 10**20), ("show", 10**20), ("top", "--threads", 10**20),
    ],
)  # fmt: skip
def test_numbers_no_database_holds_are_refused(database: Path, asked: tuple[object, ...]) -> None:
    assert "64 bits" in refuse(*asked, "--database", database)


def test_merging_a_database_into_itself_changes_nothing(database: Path) -> None:
    before = succeed("stats", "--database", database)
    found = succeed("merge", "--database", database, database)
    assert succeed("stats", "--database", database)["trials"] == before["trials"]
    assert found["sources"][str(database)]["added"] == 0


def test_a_bad_line_refuses_or_is_skipped(database: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "out.jsonl", tmp_path / "copy.db"
    invoke("export", "-o", file, "--database", database)
    file.write_text(file.read_text() + '{"workload": "broken\n')
    told = refuse("import", file, "--database", copy)
    assert "line 6" in told and "not JSON" in told and "nothing was imported" in told
    assert succeed("stats", "--database", copy)["trials"] == 0
    (report,) = succeed("import", file, "--skip-bad", "--database", copy)["files"].values()
    assert report["added"] == 4
    assert report["bad_lines"] == [{"line": 6, "reason": "is not JSON"}]
    file.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refuse("import", file, "--database", copy)
    assert "cannot be read" in refuse("import", tmp_path / "no.jsonl", "--database", copy)


def test_verify_measures_again_and_heals(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    with Database.open(str(path)) as opened:
        opened.register_target(host_target())
        opened.add([record(1e-12)])
    result = invoke("verify", "--json", "--database", path)
    assert result.exit_code == 1 and "1 drifted by more than 5%" in result.stderr
    found = json.loads(result.stdout)
    assert (found["faults"], found["measured"], found["drifted"]) == ([], 1, 1)
    assert found["records"][0]["ratio"] > 10 and found["records"][0]["now"]["status"] == "ok"
    assert succeed("stats", "--database", path)["trials"] == 1
    succeed("verify", "--heal", "--database", path)
    (best,) = succeed("top", "--database", path)["records"]
    assert best["latency_s"] > 1e-9
    result = invoke("verify", "--only-check", "--database", path)
    assert result.exit_code == 0 and "intact" in result.stderr


def test_verify_does_not_pretend_to_be_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    with Database.open(str(path)) as opened:
        target = host_target().with_settings({"threads": 77})
        opened.register_target(target)
        result = MeasureResult("ok", "hardware", (1.0,))
        opened.add([TuningRecord(SMALL.key, target.identity, Config.of(tile=1), result)])
    assert "not this machine" in refuse("verify", "--database", path)


def test_a_damaged_database_fails_its_check(database: Path) -> None:
    from sqlalchemy import text

    with Database.open(str(database)) as opened, opened.writing() as connection:
        connection.execute(text("UPDATE trials SET latest = FALSE WHERE id = 1"))
    assert "no last word" in refuse("verify", "--database", database, code=1)


def test_bytes_that_nobody_wrote_are_damage(database: Path) -> None:
    from sqlalchemy import text

    with Database.open(str(database)) as opened, opened.writing() as connection:
        connection.execute(text("UPDATE trials SET samples = '[1.0, 2.' WHERE id = 1"))
    assert "is damaged" in refuse("export", "--database", database)
    readable = succeed("query", "--sort", "oldest", "--database", database)["records"]
    assert [record["id"] for record in readable] == [2, 3, 4]
    with Database.open(str(database)) as opened, opened.writing() as connection:
        connection.execute(text("UPDATE trials SET created_at = 'yesterday' WHERE id = 2"))
    assert "is damaged" in refuse("query", "--database", database)
    with Database.open(str(database)) as opened, opened.writing() as connection:
        connection.execute(text("UPDATE trials SET message = CAST(x'ff' AS TEXT)"))
    assert "is damaged" in refuse("query", "--limit", "0", "--database", database)


def test_prune(database: Path) -> None:
    assert succeed("prune", "--keep", 1, "--database", database)["removed"] == 0, "job 1 goes on"
    with Database.open(str(database)) as opened:
        opened.finish_job(1)
    asked = ("prune", "--keep", 1, "--database", database)
    told = succeed(*asked, "--dry-run")
    assert (told["removed"], told["trials"], told["dry_run"]) == (1, 3, True)
    assert succeed("stats", "--database", database)["trials"] == 4
    pruned = succeed(*asked)
    assert (pruned["removed"], pruned["trials"], pruned["database"]) == (1, 3, str(database))
    assert "say what to remove" in refuse("prune", "--database", database)


def test_prune_by_filters_spares_bests_and_jobs_that_go_on(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    old = datetime.now(UTC) - timedelta(days=40)
    other = Workload.parse("matmul m=8 n=8 k=8")
    with Database.open(str(path)) as opened:
        done = opened.start_job("tilesmith tune a", seed=0, strategy="random")
        opened.add([record(k * 1e-3, config=Config.of(tile=k)) for k in (1, 2, 3)], job=done)
        opened.add([record(None, config=Config.of(tile=9))], job=done)
        opened.add(
            [record(k * 1e-3, other.key, config=Config.of(tile=k), created_at=old) for k in (1, 2)],
            job=done,
        )
        opened.finish_job(done)
        going = opened.start_job("tilesmith tune b", seed=0, strategy="random")
        opened.add([record(7e-3, config=Config.of(tile=7))], job=going)

    def would(*options: object) -> int:
        told = succeed("prune", "--dry-run", "--database", path, *options)
        assert told["unfinished_jobs"] == [going]
        return int(told["removed"])

    assert would("--status", "crash") == 1
    assert would("--status", "failed", "--older-than", 30) == 0
    assert would("--older-than", 30) == 1 and would("--older-than", 50) == 0
    assert would("--workload", "m=16") == 3, "two slow ones and the crash; job 2 goes on"
    assert would("--workload", "m=8 ", "--status", "ok") == 1
    assert would("--job", going) == 0 and would("--job", done) == 4
    assert would("--target", "trn1") == 0
    assert would("--keep", 2, "--operator", "matmul") == 1
    assert succeed("prune", "--job", done, "--database", path)["trials"] == 3
    records = succeed("query", "--database", path)["records"]
    assert sorted(r["latency_s"] for r in records) == [1e-3, 1e-3, 7e-3]


def test_what_gains_most_comes_first(tmp_path: Path) -> None:
    path, target = tmp_path / "tuning.db", host_target()
    keys = [f"matmul m={m} n=8 k=8" for m in (8, 16, 24, 32)]
    tasks = [
        {"workload": key, "weight": weight, "default_us": default, "best_us": 1000.0}
        for key, weight, default in zip(
            keys, (1, 10, 1, "x"), (3000.0, 1500.0, None, 9.0), strict=True
        )
    ]
    tasks[1]["flops"] = 2e6
    command = (
        f"tilesmith tune x --target cpu --threads 1 --seed 0  # {target.identity}, workloads 0"
    )
    with Database.open(str(path)) as opened:
        job = opened.start_job(command, seed=0, strategy="random", targets=[target])
        opened.add([record(1e-3, key, config=Config.of(tile=1)) for key in keys], job=job)
        opened.beat(job, {"measured_by": "hardware", "tasks": tasks})
    found = succeed("top", "--database", path)["records"]
    gained = [r["gained_us"] for r in found if r["gained_us"] is not None]
    assert [r["workload"] for r in found] == [keys[1], keys[0], keys[2], keys[3]]
    assert gained == pytest.approx([5000, 2000, 0]), "the last is not slower by tuning"
    assert found[0]["gflops"] == pytest.approx(2.0), "2 MFLOP told, 1 ms"
    assert found[1]["gflops"] == pytest.approx(2 * 8**3 / 1e6), "counted, as nobody told"
    assert [r["weight"] for r in found] == [10, 1, 1, 1]
    assert len(succeed("top", "--database", path, "--limit", 1)["records"]) == 1
    by_name = succeed("top", "--database", path, "--sort", "workload")["records"]
    assert [r["workload"] for r in by_name] == sorted(keys)
    assert "5000.00" in invoke("top", "--database", path).stdout


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("top", "no working schedule"), ("query", "no trial"), ("jobs", "no job"),
        ("machines", "no machine"), ("stats", "no trial yet"), ("jobs --state dead", "no job"),
    ],
)  # fmt: skip
def test_an_empty_answer_says_so(tmp_path: Path, command: str, told: str) -> None:
    path = tmp_path / "tuning.db"
    Database.open(str(path)).close()
    result = invoke(*command.split(), "--database", path)
    assert result.exit_code == 0 and told in result.stderr


@pytest.mark.parametrize(
    "command", ["top", "query", "stats", "export", "verify", "prune --keep 1", "show 1"]
)
def test_asking_a_database_that_is_not_there_makes_none(tmp_path: Path, command: str) -> None:
    path = tmp_path / "missing.db"
    assert "does not exist" in refuse(*command.split(), "--database", path)
    assert not path.exists()


def test_wrong_usage_is_one_sentence(database: Path, tmp_path: Path) -> None:
    assert "--database" in refuse("top")
    assert "choose one" in refuse("query", "--csv", "--json", "--database", database)
    assert "-o" in refuse("export", "--json", "--database", database)
    assert "cannot be written" in refuse(
        "export", "-o", tmp_path / "no" / "x.jsonl", "--database", database
    )
    for option, value in (("count", "-1"), ("seed", "-1"), ("tolerance", "nan")):
        assert f"--{option}" in refuse("verify", f"--{option}", value, "--database", database)
    assert "not a finite number" in refuse("query", "--faster-than", "inf", "--database", database)
    made = tmp_path / "made.db"
    assert "does not exist" in refuse("merge", tmp_path / "absent.db", "--database", made)
    assert not made.exists()
    assert "a device or a pipe" in refuse("stats", "--database", "/dev/null")
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to be read")
    assert "not a tuning database" in refuse("stats", "--database", text)
