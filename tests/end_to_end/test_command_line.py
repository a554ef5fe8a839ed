"""The command line as scripts meet it: JSON keys, and what ends up in files."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import (
    SEARCH,
    SMALL,
    TUNE,
    invoke,
    refuse,
    save_model,
    start,
    succeed,
    trials_in,
)


def test_tune_prints_one_json_object_and_keeps_its_trials(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    report = succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    assert report["trials"] == 2
    assert report["wall_s"] > 0
    (task,) = report["tasks"]
    assert task["workload"] == task["key"] == SMALL
    assert set(task) == {
        "workload", "key", "weight", "default_us", "best_us", "gflops", "config", "measured_by",
        "trials", "schedule", "gain", "in_model",
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
    tuned = succeed("tune", model, "--database", database, *SEARCH)
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


def test_several_models_are_timed_into_one_table(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes())
    asked = ("bench", model, other, "--seconds", "0.1")
    found = succeed(*asked, "--against", "onnxruntime")["models"]
    assert [one["model"] for one in found] == [str(model), str(other)]
    assert all(one["median_ms"] > 0 and one["max_rel_err"] < 1e-4 for one in found)
    assert "several were given" in refuse(*asked, "--model", model)


def test_a_model_that_cannot_be_timed_costs_the_others_nothing(model: Path, tmp_path: Path) -> None:
    absent, broken = tmp_path / "absent.onnx", tmp_path / "broken.tsm"
    broken.write_bytes(b"no archive")
    asked = ("bench", absent, model, broken, "--seconds", "0.1", "--shape", "x=4x8")
    done = invoke(*asked)
    assert done.exit_code == 2 and str(model) in done.stdout
    assert "2 of 3 models" in done.stderr and "does not exist" in done.stderr
    found = {one["model"]: one for one in json.loads(invoke(*asked, "--json").stdout)["models"]}
    assert found[str(model)]["median_ms"] > 0 and "error" not in found[str(model)]
    assert "does not exist" in found[str(absent)]["error"]["message"]
    assert found[str(broken)]["error"]


def test_each_of_several_models_takes_its_own_shapes(model: Path, tmp_path: Path) -> None:
    open_sizes = tmp_path / "open.onnx"
    text = "g (float[n, 8] z) => (float[n, 6] y) { y = MatMul(z, w) }"
    onnx.save(model_of(text, w=random(8, 6)), str(open_sizes))
    asked = ("bench", model, open_sizes, "--seconds", "0.1", "--against", "onnxruntime")
    for shapes in (("--shape", "n=3"), ("--shape", "z=3x8", "--shape", "x=4x8")):
        found = succeed(*asked, *shapes)["models"]
        assert [len(one["peers"]) for one in found] == [1, 1]
    table = invoke(*asked, "--shape", "n=3").stdout.splitlines()
    assert table[0].split("  ")[0] == "model" and len(table) == 5
    said = refuse(*asked, "--shape", "n=3", "--shape", "q=3")
    assert "no model has an input or a symbolic dimension 'q'" in said and "z, n" in said
    done = invoke(*asked, "--shape", "n=3", "--shape", "x=5x8")
    assert done.exit_code == 2 and "does not fit" in done.stderr
    compiled = tmp_path / "open.tsm"
    succeed("compile", open_sizes, "-o", compiled, "--shape", "n=1..8")
    found = succeed("bench", model, compiled, "--seconds", "0.1", "--shape", "n=3")["models"]
    assert all(one["runs"] > 0 and one["p99_us"] >= one["p50_us"] for one in found)


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
    assert (facts["vector.bytes"]["value"], facts["vector.registers"]["value"]) == (32, 16)


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
    again = succeed(*job, "--measure", "replay", "--strategy", "random", "--trials", 60, "--resume")
    assert again["best_us"] == found["best_us"], "there is nothing to resume"


def test_the_module_is_the_command() -> None:
    process = start("--help")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Usage: tilesmith" in output
    for command in ("tune", "compile", "run", "bench", "simulate", "db", "targets", "operators"):
        assert f"\n  {command} " in output


def test_passes_are_listed_without_a_model() -> None:
    listed = succeed("compile", "--print-passes", "--target", "trn1", "--precision", "bf16")
    names = [step["name"] for step in listed["passes"]]
    assert names[:2] == ["widen-floats", "remove-dead-code"] and names[-1] == "settle-layouts"
    (precision,) = (step for step in listed["passes"] if step["name"] == "lower-precision")
    assert precision["options"] == {"precision": "bf16"}
    text = invoke("compile", "--print-passes", "--target", "trn1").stdout
    assert [line.split()[1].rstrip(":") for line in text.splitlines() if line[1] != " "] == names
    assert all(step["summary"] in text and step["contract"] for step in listed["passes"])
    listed = succeed("compile", "--print-passes", "--precision", "fp16")
    assert any(step["name"] == "narrow-kernels" for step in listed["passes"])
    assert "is for CPUs" in refuse(
        "compile", "--print-passes", "--target", "trn1", "--precision", "fp16"
    )
    assert "MODEL.onnx" in refuse("compile", "-o", "model.tsm")


def test_passes_are_dumped_and_verified(model: Path, tmp_path: Path) -> None:
    artifact, folder = tmp_path / "small.tsm", tmp_path / "passes"
    watching = ("--verify-passes", "--dump-passes", folder)
    succeed("compile", model, "-o", artifact, *watching)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    lowered = next(name for name in first if name.endswith("-lower-to-kernels.txt"))
    assert "00-import.txt" in first
    assert all(" = {matmul " in text for name, text in first.items() if name >= lowered)
    artifact.unlink()
    succeed("compile", model, "-o", artifact, *watching)
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    (folder / "mine.txt").write_text("my notes")
    artifact.unlink()
    assert "holds 'mine.txt'" in refuse("compile", model, "-o", artifact, *watching)
    assert not artifact.exists() and (folder / "mine.txt").read_text() == "my notes"


def test_a_command_without_a_standard_output_ends_in_order() -> None:
    words = f"{shlex.quote(sys.executable)} -m tilesmith targets >&-"
    ended = subprocess.run(words, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
