"""The Python API: the same jobs as the command line, on values in memory too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import tilesmith as ts
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.subjects.light_models import light_model_names, save_light_model
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.simulator.cpu.microbenchmarks import calibration, shared_machine
from tilesmith.tuner.session.progress import Progress

SMALL = ts.Workload.parse("matmul m=8 n=16 k=8 const=b")
SYSTOLIC = {"array.rows": 32, "array.cols": 32}


def perceptron() -> onnx.ModelProto:
    """y = relu(x w); two equal layers and one of another shape."""
    text = """small (float[4, 8] x) => (float[4, 6] y)
    {
        h = MatMul(x, w) r = Relu(h) g = MatMul(r, w) s = Relu(g) y = MatMul(s, v)
    }"""
    graph = parser.parse_graph(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 8)), ("v", (8, 6))):
        array = rng.standard_normal(shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


def test_a_model_in_memory_is_tuned_compiled_run_saved_and_loaded(tmp_path: Path) -> None:
    model, database = perceptron(), tmp_path / "tuning.db"
    seen: list[Progress] = []
    report = ts.tune(model, database=database, trials=4, measure="hardware", observer=seen.append)
    assert {task.weight for task in report.tasks} == {1.0, 2.0}
    assert report.trials == 4
    assert seen[-1].trials == 4
    assert report.best_us is not None
    assert report.default_us is not None
    assert report.best_us <= report.default_us

    compiled = ts.compile(model, database=database)
    assert (compiled.report.tuned, compiled.report.measured) == (0, 3)
    inputs = random_inputs(compiled)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, inputs)
    outputs = compiled.run(inputs)["y"]
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    compiled.save(tmp_path / "small.tsm")
    loaded = ts.load(tmp_path / "small.tsm")
    assert np.array_equal(loaded.run(inputs)["y"], outputs)
    assert loaded.source == ""


def test_the_best_of_a_job_is_the_database_s_best(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    (task,) = ts.tune(SMALL, database=database, trials=5, measure="hardware").tasks
    with ts.Database.open(str(database)) as opened:
        best = opened.best(SMALL, ts.resolve_target("cpu"))
    assert best is not None
    assert best.record.config == task.config
    assert task.best_us == pytest.approx(best.latency * 1e6, rel=0.021)  # near-ties are one


def test_equal_workloads_are_one_task_with_their_number_as_weight(tmp_path: Path) -> None:
    report = ts.tune([SMALL, SMALL], "systolic", tmp_path / "tuning.db", trials=2)
    (task,) = report.tasks
    assert (task.weight, task.measured_by) == (2.0, "simulator")


def test_nothing_to_tune_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ts.InputError, match="no workload"):
        ts.tune([], database=tmp_path / "tuning.db")


def test_a_simulated_model_is_the_sum_of_its_operators() -> None:
    first, second = SMALL, ts.Workload.parse("matmul m=64 n=64 k=64")
    both = ts.simulate([first, second, second], "systolic", settings=SYSTOLIC)
    one = ts.simulate(first, "systolic", settings=SYSTOLIC)
    other = ts.simulate(second, "systolic", settings=SYSTOLIC)
    assert both.latency_us == pytest.approx(one.latency_us + 2 * other.latency_us)
    assert both.compute_cycles == one.compute_cycles + 2 * other.compute_cycles
    assert len(both.ops) == 2


def test_the_closed_form_of_a_systolic_array_is_reached_by_the_api() -> None:
    workload = ts.Workload.parse("matmul m=256 n=128 k=256")
    settings = {**SYSTOLIC, "dataflow": "ws"}
    found = ts.simulate(workload, "systolic", settings=settings)
    assert found.compute_cycles == 11199  # SCALE-Sim's closed form


def test_a_trace_of_several_operators_is_refused(tmp_path: Path) -> None:
    other = ts.Workload.parse("matmul m=64 n=64 k=64")
    with pytest.raises(ts.InputError, match="single operator"):
        ts.simulate([SMALL, other], "systolic", trace=tmp_path / "trace.json")


def test_a_database_that_is_not_there_is_refused_where_it_is_only_read(tmp_path: Path) -> None:
    with pytest.raises(ts.DatabaseError):
        ts.compile(perceptron(), database=tmp_path / "absent.db")
    with pytest.raises(ts.DatabaseError):
        ts.simulate(SMALL, "systolic", database=tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()


def test_a_target_passed_as_a_value_takes_settings_too() -> None:
    target = ts.resolve_target("systolic")
    changed = ts.resolve_target(target, {"array.rows": "16"})
    assert changed.integer("array.rows") == 16
    assert ts.resolve_target(target) is target


def test_light_models_get_seeded_weights(tmp_path: Path) -> None:
    first = save_light_model("squeezenet", tmp_path / "a.onnx")
    again = save_light_model("squeezenet", tmp_path / "b.onnx")
    other = save_light_model("squeezenet", tmp_path / "c.onnx", seed=1)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert "resnet50" in light_model_names()
    with pytest.raises(ts.ModelError, match="squeezenet"):
        save_light_model("lenet", tmp_path / "d.onnx")


def test_this_machine_is_calibrated_once_and_stays_the_same_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (calibration, shared_machine):  # to read what no cache holds takes seconds
        monkeypatch.setattr(module, "beyond_caches", lambda last: last // 8)
    plain = ts.resolve_target("cpu")
    monkeypatch.setenv("TILESMITH_CALIBRATION", str(tmp_path))
    assert "clock.ghz" not in ts.resolve_target("cpu"), "it is measured only where it matters"
    found = resolve_target("cpu", calibrate=True)
    assert 0.1 < found.number("clock.ghz") < 10
    (kept,) = tmp_path.iterdir()
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"clock.ghz": 2.5}))
    again = resolve_target("cpu", calibrate=True)
    assert again.number("clock.ghz") == 2.5, "measured once"
    assert plain.identity == found.identity == again.identity
    assert ts.resolve_target("cpu").number("clock.ghz") == 2.5


def test_what_jobs_give_is_shown_in_a_few_lines(tmp_path: Path) -> None:
    model, database = perceptron(), tmp_path / "t.db"
    report = ts.tune(model, database=database, trials=2, measure="simulator", target="systolic")
    first, *rest = repr(report).splitlines()
    assert first.startswith("<TuneReport of 2 trials in ") and len(rest) == len(report.tasks)
    for task, line in zip(report.tasks, rest, strict=True):
        assert str(task.workload) in line and f"-> {task.best_us:.4g} us" in line
    found = ts.simulate(model, target="systolic")
    assert f"{found.latency_us:.4g} us" in repr(found)
    assert repr(ts.sweep(SMALL, {"array.rows": [32, 64]}, "systolic")).startswith("<Sweep of array")
    for one in (found, ts.compare(model), ts.profile(model), ts.shard(model, "trn1.32xlarge")):
        shown = repr(one)
        assert shown.startswith(f"<{type(one).__name__} ") and len(shown) < 200
