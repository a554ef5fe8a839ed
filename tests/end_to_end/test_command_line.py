"""The command line as scripts meet it: JSON keys, exit codes, one sentence for every bad input."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from tilesmith.command_line import command_line

SMALL = "matmul m=16 n=32 k=8 const=b"
TUNE = ("--measure", "hardware", "--trials", "2")

Dims = Sequence[int | str]


def invoke(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(command_line, [str(a) for a in arguments])


def succeed(*arguments: str | Path | int) -> Any:
    """Run with --json; the one object on stdout."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refuse(*arguments: str | Path, code: int = 2) -> str:
    """Run what must fail: the one sentence it says."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("tilesmith: ")
    return sentence


def save_model(path: Path, shape: Dims = (4, 8), dtype: int = TensorProto.FLOAT) -> Path:
    """relu(x w) with a constant (8, 6) weight."""
    weight = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", dtype, list(shape))],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(weight.astype(helper.tensor_dtype_to_np_dtype(dtype)), "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "small.onnx")


# -- what scripts rely on ---------------------------------------------------------------------


def test_tune_prints_one_json_object_and_keeps_its_trials(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    report = succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    assert report["trials"] == 2
    assert report["wall_s"] > 0
    (task,) = report["tasks"]
    assert task["workload"] == task["key"] == SMALL
    assert set(task) == {
        "workload", "key", "weight", "default_us", "best_us", "gflops", "config", "measured_by",
        "trials",
    }  # fmt: skip
    assert 0 < task["best_us"] <= task["default_us"]
    assert task["measured_by"] == "hardware"
    expected = 2 * 16 * 32 * 8 / task["best_us"] / 1e3
    assert task["gflops"] == pytest.approx(expected)
    stats = succeed("db", "stats", "--database", database)
    assert stats["trials"] >= 2
    assert (stats["workloads"], stats["targets"], stats["jobs"]) == (1, 1, 1)


def test_tuning_a_model_compiling_running_and_timing_it(model: Path, tmp_path: Path) -> None:
    database, artifact = tmp_path / "tuning.db", tmp_path / "small.tsm"
    tuned = succeed("tune", model, "--database", database, *TUNE)
    assert [task["weight"] for task in tuned["tasks"]] == [1]
    compiled = succeed("compile", model, "--database", database, "-o", artifact)
    assert (compiled["tuned"], compiled["fallback"], compiled["stale"], compiled["host"]) == (
        1, 0, 0, 0,
    )  # fmt: skip
    assert compiled["artifact"] == str(artifact)
    assert compiled["compile_s"] > 0

    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    weight = numpy_helper.to_array(onnx.load(str(model)).graph.initializer[0])
    for runnable in (model, artifact):
        out = tmp_path / "out.npz"
        succeed("run", runnable, "--input", f"x={tmp_path / 'x.npy'}", "--output", out)
        with np.load(out) as outputs:
            np.testing.assert_allclose(outputs["y"], np.maximum(x @ weight, 0), atol=1e-5)

    timed = succeed("bench", artifact, "--against", "onnxruntime", "--seconds", "0.1")
    assert 0 < timed["min_ms"] <= timed["median_ms"]
    assert timed["threads"] == 1
    assert set(timed["peers"]["onnxruntime"]) >= {"median_ms", "min_ms"}
    assert timed["max_abs_err"] < 1e-5
    assert timed["max_rel_err"] < 1e-5


def test_bench_without_peers_has_no_error_to_report(model: Path) -> None:
    timed = succeed("bench", model, "--seconds", "0.1")
    assert timed["peers"] == {}
    assert timed["max_abs_err"] is None


def test_an_artifact_whose_source_is_gone_asks_for_it(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact)
    moved = model.rename(tmp_path / "moved.onnx")
    sentence = refuse("bench", artifact, "--against", "onnxruntime", "--seconds", "0.1")
    assert "--model" in sentence
    timed = succeed(
        "bench", artifact, "--against", "onnxruntime", "--model", moved, "--seconds", "0.1"
    )
    assert "onnxruntime" in timed["peers"]


def test_an_artifact_runs_with_the_threads_it_was_compiled_for(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact, "--threads", "2")
    assert succeed("bench", artifact, "--seconds", "0.1")["threads"] == 2
    assert "--threads 2" in refuse("bench", artifact, "--threads", "1")
    assert "--threads 2" in refuse("run", artifact, "--threads", "1")


def test_simulate_says_what_bounds_it() -> None:
    found = succeed("simulate", "--op", "matmul m=512 n=512 k=512 const=b", "--target", "cpu")
    assert found["latency_us"] > 0
    assert found["cycles"] >= found["compute_cycles"] > 0
    assert found["bound"]
    assert len(found["ops"]) == 1
    assert all(0 <= busy <= 1.0001 for busy in found["engines"].values())


def test_simulating_a_model_adds_its_operators_up(model: Path) -> None:
    found = succeed("simulate", model)
    total = sum(op["latency_us"] * op.get("weight", 1) for op in found["ops"])
    assert found["latency_us"] == pytest.approx(total)


def test_a_setting_changes_what_a_target_says() -> None:
    changed = succeed("targets", "trn1", "--set", "sbuf.mib=48")["targets"][0]
    assert changed["facts"]["sbuf.mib"]["value"] == 48
    assert changed["identity"] != succeed("targets", "trn1")["targets"][0]["identity"]


def test_a_narrowed_cpu_has_the_lanes_and_registers_of_its_instruction_set() -> None:
    facts = succeed("targets", "cpu", "--set", "isa.name=avx2")["targets"][0]["facts"]
    assert (facts["vector.lanes"]["value"], facts["vector.registers"]["value"]) == (8, 16)


def test_lists_of_targets_and_operators() -> None:
    names = [target["name"] for target in succeed("targets")["targets"]]
    assert names[0] == "cpu"
    assert {"trn1", "trn2", "systolic"} <= set(names)
    operators = {o["name"]: o for o in succeed("operators")["operators"]}
    (m, *_) = operators["matmul"]["parameters"]
    assert m["name"] == "m"
    assert m["required"]
    for arguments in (("targets",), ("targets", "trn1"), ("operators",), ("operators", "matmul")):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) > 3


def test_a_symbolic_dimension_is_bound_by_shape(tmp_path: Path) -> None:
    path = save_model(tmp_path / "batch.onnx", ("batch", 8))
    found = succeed("simulate", path, "--shape", "x=3x8")
    assert "m=3" in found["ops"][0]["workload"]


# -- bad input --------------------------------------------------------------------------------

BAD_OPERATORS = {
    "matmul m=512 n=512": "needs k=",
    "matmul m=0 n=512 k=512": "m=0",
    "matmul m=512 n=512 k=512 dtype=float31": "unknown dtype 'float31'",
    "matmul m=512 n=512 k=512 q=1": "no parameter 'q'",
    "matmul m=512 n=512 k=512 m=2": "given twice",
    "matmul m=512 n=512 k": "not of the form NAME=VALUE",
    "matmul m=512 n=512 k=512 epilogue=frobnicate": "unknown epilogue step 'frobnicate'",
    "matmol m=512 n=512 k=512": "unknown operator 'matmol'",
}


@pytest.mark.parametrize("text", BAD_OPERATORS)
def test_a_wrong_operator_is_refused(text: str, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    assert BAD_OPERATORS[text] in refuse("tune", "--op", text, "--database", database)
    assert not database.exists()


Spoil = Callable[[Path], object]

BAD_FILES: dict[str, tuple[Spoil, str]] = {
    "missing": (lambda path: path.unlink(), "does not exist"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
    "text": (lambda path: path.write_text("hello, world\n" * 9), "not an ONNX model"),
    "empty": (lambda path: path.write_bytes(b""), "not an ONNX model"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    "zero dimension": (lambda path: save_model(path, (0, 8)), "0x8"),
    "symbolic dimension": (lambda path: save_model(path, ("batch", 8)), "--shape"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("command", ["tune", "compile", "run", "bench", "simulate"])
def test_a_wrong_model_is_refused(command: str, kind: str, model: Path, tmp_path: Path) -> None:
    spoil, expected = BAD_FILES[kind]
    spoil(model)
    more = {
        "tune": ["--database", tmp_path / "tuning.db"],
        "compile": ["-o", tmp_path / "small.tsm"],
    }.get(command, [])
    assert expected in refuse(command, model, *more)
    assert not (tmp_path / "small.tsm").exists()


def test_wrong_usage_is_refused(model: Path, tmp_path: Path) -> None:
    database = ["--database", tmp_path / "tuning.db"]
    assert "not both" in refuse("tune", model, "--op", SMALL, *database)
    assert "--op" in refuse("tune", *database)
    assert "--database" in refuse("tune", "--op", SMALL)
    assert "No such option" in refuse("tune", "--op", SMALL, *database, "--trails", "3")
    assert "No such command" in refuse("tuna")
    assert "--trials" in refuse("tune", "--op", SMALL, *database, "--trials", "0")
    assert "strategy" in refuse("tune", "--op", SMALL, *database, "--strategy", "wishing")
    assert "cost model" in refuse("tune", "--op", SMALL, *database, "--cost-model", "crystal")
    assert "--against" in refuse("bench", model, "--against", "abacus")
    assert "scheduler" in refuse("tune", "--op", SMALL, *database, "--scheduler", "fate")
    assert "time-limit = nan" in refuse("tune", "--op", SMALL, *database, "--time-limit", "nan")
    assert not (tmp_path / "tuning.db").exists(), "nothing is made for a job that cannot start"
    assert "no unfinished job" in refuse("tune", "--op", SMALL, *database, "--resume")


def test_a_wrong_target_is_refused(tmp_path: Path) -> None:
    simulate = ["simulate", "--op", SMALL, "--target"]
    assert "unknown target 'trn9'" in refuse(*simulate, "trn9")
    assert "cannot be read" in refuse(*simulate, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("family = ")
    assert "not valid TOML" in refuse(*simulate, broken)
    assert "no 'sbuf.gib'" in refuse(*simulate, "trn1", "--set", "sbuf.gib=1")
    assert "not of type int" in refuse(*simulate, "trn1", "--set", "sbuf.mib=big")
    assert "out of range" in refuse(*simulate, "trn1", "--set", "sbuf.mib=-1")
    assert "KEY=VALUE" in refuse(*simulate, "trn1", "--set", "sbuf.mib")
    assert "avx9" in refuse(*simulate, "cpu", "--set", "isa.name=avx9")


def test_an_operator_without_schedules_for_a_target_is_refused(model: Path, tmp_path: Path) -> None:
    pool = "pool2d kind=max c=8 h=8 w=8 kh=2 kw=2 stride=2"
    expected = "operator 'pool2d' has no schedules for target 'systolic'"
    assert expected in refuse("simulate", "--op", pool, "--target", "systolic")
    job = ["tune", "--op", pool, "--target", "systolic", "--database", tmp_path / "tuning.db"]
    assert expected in refuse(*job)
    compile_it = ["compile", model, "--target", "systolic", "-o", tmp_path / "small.tsm"]
    assert "'systolic'" in refuse(*compile_it)


def test_hardware_that_is_not_here_is_refused(tmp_path: Path) -> None:
    job = ["tune", "--op", SMALL, "--database", tmp_path / "tuning.db", "--target", "trn1"]
    assert "simulator" in refuse(*job, "--measure", "hardware")


def test_a_wrong_shape_is_refused(model: Path) -> None:
    assert "'y'" in refuse("simulate", model, "--shape", "y=4x8")
    assert "NAME=1x3x224x224" in refuse("simulate", model, "--shape", "x:4x8")
    assert "dimension of zero" in refuse("simulate", model, "--shape", "x=0x8")
    assert "'x'" in refuse("simulate", model, "--shape", "x=5x8")


def test_wrong_arrays_are_refused(model: Path, tmp_path: Path) -> None:
    good, other = tmp_path / "good.npy", tmp_path / "other.npy"
    np.save(good, np.zeros((4, 8), np.float32))
    run = ["run", model, "--input"]
    assert "'z'" in refuse(*run, f"z={good}")
    np.save(other, np.zeros((5, 8), np.float32))
    assert "5x8" in refuse(*run, f"x={other}")
    np.save(other, np.zeros((4, 8), np.int64))
    assert "int64" in refuse(*run, f"x={other}")
    np.save(other, np.array([{}], dtype=object), allow_pickle=True)
    assert "plain numbers" in refuse(*run, f"x={other}")
    other.write_text("1, 2, 3")
    assert "plain numbers" in refuse(*run, f"x={other}")
    assert "cannot be read" in refuse(*run, f"x={tmp_path / 'absent.npy'}")
    assert "given twice" in refuse(*run, f"x={good}", "--input", f"x={good}")


def test_a_wrong_artifact_is_refused(tmp_path: Path) -> None:
    artifact = tmp_path / "model.tsm"
    artifact.write_bytes(b"PK\x03\x04 this is no artifact")
    assert "model.tsm" in refuse("run", artifact)
    assert "absent.tsm" in refuse("bench", tmp_path / "absent.tsm")


def test_a_wrong_database_is_refused(model: Path, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    compile_it = ["compile", model, "-o", tmp_path / "small.tsm", "--database", database]
    assert "tuning.db" in refuse(*compile_it)
    database.write_text("this is no database " * 100)
    assert "tuning.db" in refuse(*compile_it)
    assert "tuning.db" in refuse("tune", "--op", SMALL, "--database", database)
    assert "nowhere" in refuse("tune", "--op", SMALL, "--database", tmp_path / "nowhere" / "t.db")
    assert "frob" in refuse("tune", "--op", SMALL, "--database", "frob://host/name")


def test_a_database_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    with sqlite3.connect(database) as connection:
        connection.execute("update schema_version set version_num = '9999'")
    connection.close()
    assert "newer" in refuse("tune", "--op", SMALL, "--database", database)


def test_a_read_only_database_is_refused_where_it_would_be_written(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    database.chmod(0o444)
    assert "read-only" in refuse("tune", "--op", SMALL, "--database", database, *TUNE)
    assert succeed("db", "stats", "--database", database)["trials"] >= 2


def test_something_untuned_is_refused_where_all_must_be_tuned(model: Path, tmp_path: Path) -> None:
    database, artifact = tmp_path / "tuning.db", tmp_path / "small.tsm"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    compile_it = ["compile", model, "-o", artifact, "--database", database, "--require-tuned"]
    assert "matmul m=4" in refuse(*compile_it)
    assert not artifact.exists()


# -- failing jobs, in processes of their own ---------------------------------------------------


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tilesmith", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **options)


def one_sentence(process: subprocess.Popen[str]) -> str:
    """The last line of stderr of a process that must not show a traceback."""
    _, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_tuning_loses_no_trial(
    number: signal.Signals, tmp_path: Path
) -> None:
    database = tmp_path / "tuning.db"
    job = ["tune", "--op", SMALL, "--database", database, "--measure", "hardware"]
    process = start(*job, start_new_session=True)
    deadline = time.monotonic() + 60
    while trials_in(database) < 3:
        assert process.poll() is None, one_sentence(process)
        assert time.monotonic() < deadline, "tuning does not get on"
        time.sleep(0.05)
    os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the worker process too
    sentence = one_sentence(process)
    assert process.returncode == 1
    assert number.name in sentence
    kept = trials_in(database)
    assert f"after {kept} trials" in sentence
    resuming = shlex.split(sentence.partition("to go on: ")[2])
    assert resuming == ["tilesmith", *map(str, job), "--resume"]
    more = succeed(*resuming[1:], "--trials", str(kept + 1))
    assert more["trials"] == kept + 1


def test_a_job_that_does_not_come_to_an_end_is_torn_out_of(tmp_path: Path) -> None:
    """A cost model in training polls nothing; the exception finds it, and the trials stay."""
    script = """
import time, tuner.predictor
from tilesmith.command_line import main
def train(self):
    print("training", flush=True)
    while True:
        time.sleep(0.01)
tuner.predictor.Predictor.train_if_due = train
main()
"""
    job = ["tune", "--op", SMALL, "--database", str(tmp_path / "t.db"), "--measure", "simulator"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *job], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGINT)
    sentence = one_sentence(process)
    assert process.returncode == 1
    assert f"after {trials_in(tmp_path / 't.db')} trials" in sentence
    assert sentence.endswith("--resume")


def test_a_database_that_another_holds_does_not_keep_a_stopped_job(tmp_path: Path) -> None:
    """A commit waits for the other writer and cannot be torn; the process ends all the same."""
    database = tmp_path / "t.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("begin immediate")
    process = start("tune", "--op", SMALL, "--database", database, "--measure", "simulator")
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    sentence = one_sentence(process)
    other.close()
    assert process.returncode == 1
    assert "stopped" in sentence or "interrupted" in sentence


def test_a_replay_finds_the_best_on_record_and_writes_nothing(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    job = ["tune", "--op", "softmax shape=8x16", "--target", "cpu", "--database", database]
    recorded = succeed(*job, "--measure", "simulator", "--strategy", "exhaustive", "--trials", 60)
    before = trials_in(database)
    found = succeed(*job, "--measure", "replay", "--strategy", "random", "--trials", 60)
    (was,), (now,) = recorded["tasks"], found["tasks"]
    assert now["measured_by"] == "simulator"
    assert now["default_us"] == was["default_us"]
    assert now["best_us"] == was["best_us"], "the same space, looked up"
    assert trials_in(database) == before
    assert succeed("db", "stats", "--database", database)["jobs"] == 1
    other = ["tune", "--op", SMALL, "--database", database, "--measure", "replay"]
    assert "cannot be replayed" in refuse(*other)
    assert "leave --resume out" in refuse(*other, "--resume")


def trials_in(database: Path) -> int:
    """Trials committed so far, asked of SQLite itself."""
    if not database.exists():
        return 0
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        (count,) = connection.execute("select count(*) from trials").fetchone()
        connection.close()
    except sqlite3.OperationalError:
        return 0
    return int(count)


def test_a_full_disk_ends_the_job_with_a_sentence(model: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    process = start("compile", model, "-o", "/dev/full")
    assert "No space left on device" in one_sentence(process)
    assert process.returncode == 1
    with Path("/dev/full").open("w") as full:
        process = start("operators", "--json", stdout=full)
    assert "No space left on device" in one_sentence(process)
    assert process.returncode == 1


def test_a_reader_that_goes_away_ends_the_job_with_a_sentence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("operators", stdout=writer)
    os.close(writer)
    assert "closed" in one_sentence(process)
    assert process.returncode == 1


def test_the_module_is_the_command() -> None:
    process = start("--help")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Usage: tilesmith" in output
    for command in ("tune", "compile", "run", "bench", "simulate", "db", "targets", "operators"):
        assert f"\n  {command} " in output
