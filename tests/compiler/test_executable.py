"""Executables: inputs checked, artifacts written, read and refused, schedules from the database."""

from __future__ import annotations

import dataclasses
import functools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.artifact.artifact import read_artifact, write_artifact
from tilesmith.compiler.artifact.artifact_file import DIGEST, digest
from tilesmith.compiler.driver.build import BuildOptions, build, extract_tasks
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.records import TuningRecord
from tilesmith.records.database import Database
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.support.errors import InputError, JobError, ModelError, TargetError
from tilesmith.search_space.workloads.workload import Workload

MODEL = model_of(
    "g (float[3, 8] x, float[3, 5] z) => (float[3, 5] y, float[3, 5] c) "
    "{ a = MatMul(x, w) b = Add(a, z) y = Relu(b) c = Mod<fmod = 1>(y, turns) }",
    w=random(8, 5), turns=np.array([1, 3, 2, 3, 0.5], np.float32),
)  # fmt: skip


@pytest.fixture(scope="module")
def executable() -> Executable:
    return build(import_model(MODEL), host_target())


@pytest.fixture
def inputs() -> dict[str, Any]:
    return inputs_of(import_model(MODEL))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(str(tmp_path / "t.db")) as opened:
        yield opened


def test_it_runs_again_and_again(executable: Executable, inputs: dict[str, Any]) -> None:
    first = executable.run(inputs)
    assert_close(first, expected(MODEL, inputs))
    other = {name: 2 * array for name, array in inputs.items()}
    executable.run(other)
    second = executable.run(inputs)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_inputs_may_be_of_any_memory_order(executable: Executable, inputs: dict[str, Any]) -> None:
    strange = {name: np.asfortranarray(array)[::1] for name, array in inputs.items()}
    assert_close(executable.run(strange), expected(MODEL, inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros(1)}, "no input 'q'; its inputs are x, z"),
        ({"x": None}, "input 'x' of 'g' is missing"),
        ({"x": np.zeros((3, 9), np.float32)}, "has the shape 3x9; 3x8 is expected"),
        ({"x": np.zeros((3, 8, 1), np.float32)}, "has the shape 3x8x1; 3x8 is expected"),
        ({"x": np.zeros((3, 8))}, "is of dtype float64; float32 is expected"),
    ],
)
def test_wrong_inputs_are_refused(
    executable: Executable, inputs: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    given = {n: a for n, a in {**inputs, **change}.items() if a is not None}
    with pytest.raises(ModelError, match=message):
        executable.run(given)
    with pytest.raises(ModelError, match=r'inputs of .* are given by name, {"x": ..., .*list'):
        executable.run(list(given.values()))  # type: ignore[arg-type]


def test_two_threads_compute_the_same(inputs: dict[str, Any]) -> None:
    executable = build(import_model(MODEL), host_target(), options=BuildOptions(threads=2))
    assert_close(executable.run(inputs), expected(MODEL, inputs))


def test_the_report_counts(executable: Executable) -> None:
    report = executable.report
    assert (report.default, report.host, report.tuned, report.conversions) == (1, 1, 0, 0)
    assert report.host_nodes[0].startswith("Mod")
    assert report.peak_bytes >= 4 * 3 * (8 + 5 + 5)
    assert report.constant_bytes >= 4 * 8 * 5


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }",
        "g (float[2, 3] x, float[4] unused) => (float[2, 3] y) { y = Relu(x) }",
        "g (float[2, 3] x) => (float[2, 3] y, float[5] z) { y = Relu(x) z = Neg(w) }",
        "g (float[2, 3] x) => (float[3, 2] y) { y = Reshape(x, s) }",
        "g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Relu(x) z = Identity(y) }",
        "g (float[2, 3] x) => (float[6] y, float[2, 3] z) { z = Relu(x) y = Reshape(z, flat) }",
        "g (float x) => (float y) { d = Add(x, x) y = Exp(d) }",
        "g (float[2, 3] x) => (float[2, 3] y) { e = Slice(x, a, a) y = Concat<axis=0>(x, e) }",
        "g (int64[2, 3] x) => (int64[3, 2] y, bool[2, 3] z) { y = Reshape(x, s) z = Equal(x, x) }",
        "g (float[1, 2, 3] x) => (float[1, 4, 3] y) { r = Relu(x) y = Concat<axis=1>(r, r) }",
        "g (float[1, 2, 3] x) => (float[1, 4, 3] y) { y = Concat<axis=1>(x, c) }",
        "g (float16[2, 3] x) => (float16[2, 3] y) { y = Relu(x) }",
    ],
)
def test_odd_graphs(text: str, tmp_path: Path) -> None:
    model = model_of(
        text, w=random(5), s=np.array([3, 2]), flat=np.array([6]), a=np.array([2]),
        c=random(1, 2, 3),
    )  # fmt: skip
    graph = import_model(model)
    executable = build(graph, host_target())
    inputs = inputs_of(graph)
    assert_close(executable.run(inputs), expected(model, inputs))
    executable.save(tmp_path / "m.tsm")
    assert_close(Executable.load(tmp_path / "m.tsm").run(inputs), expected(model, inputs))


# -- artifacts ----------------------------------------------------------------------------------
def test_an_artifact_is_the_executable(
    executable: Executable, inputs: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.tsm"
    executable.save(path)
    loaded = Executable.load(path)
    assert_close(loaded.run(inputs), executable.run(inputs), 0.0)
    ours, theirs = vars(executable.recipe), vars(loaded.recipe)
    for name in ours.keys() - {"constants"}:
        assert ours[name] == theirs[name], name
    np.testing.assert_array_equal(ours["constants"], theirs["constants"])


def damaged(executable: Executable, path: Path, change: Any, sealed: bool = True) -> None:
    """Write an artifact whose manifest was changed; its digest fits if it is sealed again."""
    whole = path.with_suffix(".whole")
    executable.save(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            if name == DIGEST and sealed:
                content = digest(target).encode()
            target.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=99), "has the format 99; this version reads 2 to 4"),
        (lambda m: m.update(arena_bytes=-1), "arena_bytes = -1 is out of range"),
        (lambda m: m.update(arena_bytes=1 << 60), "out of range"),
        (lambda m: m.update(arena_bytes=64), "ends behind the arena"),
        (lambda m: m.update(constant_bytes=1), "ends behind the constant"),
        (lambda m: m.update(constant_bytes=1 << 20), "constants.bin has .* 1048576 are declared"),
        (lambda m: m["codes"][0].__setitem__(0, 7), "code/0.o has"),
        (lambda m: m["steps"][0].update(code=5), "code object 5 of 1"),
        (lambda m: m["inputs"][0].update(dtype="float7"), "has the dtype 'float7'"),
        (lambda m: m["inputs"][0].update(place=["moon", 0]), "region 'moon'"),
        (lambda m: m["inputs"][0].update(place=["arena", 1 << 30]), "ends behind the arena"),
        (lambda m: m["inputs"][0].update(shape=[-3, 8]), "an extent = -3"),
        (lambda m: m["steps"][0]["arguments"].__setitem__(0, ["value", 0]), "value \\+ 0"),
        (lambda m: m["steps"][0]["arguments"].__setitem__(0, ["arena", 1 << 30]), "the arena"),
        (lambda m: m["steps"][0]["arguments"].__setitem__(0, ["none", 0]), "lies at none"),
        (lambda m: m["steps"][0]["arguments"].pop(), "a kernel of \\d+ tensors is given \\d+"),
        (lambda m: m["steps"][0].update(arguments=[]), "a kernel of \\d+ tensors is given 0"),
        (lambda m: m["needs"][0].__setitem__(0, 1 << 30), "ends behind the"),
        (lambda m: m["needs"][0].__setitem__(0, -1), "an argument = -1 is out of range"),
        (lambda m: m["outputs"][0].update(place=["value", 0]), "lies nowhere"),
        (lambda m: m["inputs"][0].update(place=["none", 0]), "lies nowhere"),
        (lambda m: m.update(threads=5000), "threads = 5000 is out of range"),
        (lambda m: m.pop("steps"), "not a compiled model, or it is damaged"),
        (lambda m: m["target"].update(facts={}), "artifact|target"),
    ],
)
def test_damaged_artifacts_are_refused(
    executable: Executable, tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "bad.tsm"
    damaged(executable, path, change)
    with pytest.raises((ModelError, TargetError), match=message):
        Executable.load(path)


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of nested lists and dictionaries whose value is a number or text."""
    for key in range(len(value)) if isinstance(value, list) else value:
        if isinstance(value[key], list | dict):
            yield from leaves(value[key])
        else:
            yield value, key


def test_whatever_is_edited_is_refused(executable: Executable, tmp_path: Path) -> None:
    """Each value of the manifest in turn: a kernel with a wrong argument would crash us."""
    path = tmp_path / "edited.tsm"
    executable.save(path)
    with zipfile.ZipFile(path) as archive:
        count = len(list(leaves(json.loads(archive.read("manifest.json")))))
    assert count > 50

    def edit(manifest: Any, number: int) -> None:
        holder, key = list(leaves(manifest))[number]
        value = holder[key]
        holder[key] = value + 64 if isinstance(value, int | float) else f"{value}~"

    for number in range(count):
        damaged(executable, path, functools.partial(edit, number=number), sealed=False)
        with pytest.raises(ModelError, match=r"changed after it was written|has the format"):
            Executable.load(path)


def test_files_that_are_no_artifacts_are_refused(executable: Executable, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        Executable.load(tmp_path / "none.tsm")
    with pytest.raises(ModelError, match="cannot be read"):
        Executable.load(tmp_path)
    text = tmp_path / "text.tsm"
    text.write_text("no zip")
    with pytest.raises(ModelError, match="not a compiled model"):
        Executable.load(text)
    executable.save(tmp_path / "whole.tsm")
    cut = (tmp_path / "whole.tsm").read_bytes()[:-300]
    (tmp_path / "cut.tsm").write_bytes(cut)
    with pytest.raises(ModelError, match="not a compiled model"):
        Executable.load(tmp_path / "cut.tsm")


def test_an_artifact_that_cannot_be_written_leaves_nothing(
    executable: Executable, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        executable.save(tmp_path / "no" / "folder.tsm")
    (tmp_path / "taken.tsm").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        executable.save(tmp_path / "taken.tsm")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.tsm"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_said_and_devices_are_not_replaced(executable: Executable) -> None:
    with pytest.raises(JobError, match="No space left on device"):
        executable.save("/dev/full")
    assert Path("/dev/full").is_char_device()
    executable.save("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_code_for_other_processors_is_refused(executable: Executable, tmp_path: Path) -> None:
    recipe = read_artifact_of(executable, tmp_path)
    arm = cpu_target("arm", "neon", "aarch64-unknown-linux-gnu")
    with pytest.raises(TargetError, match="the code is for aarch64 processors"):
        Executable(dataclasses.replace(recipe, target=arm))
    with pytest.raises(TargetError, match="the code is for aarch64 processors"):
        build(import_model(MODEL), arm)
    future = host_target().with_settings({"isa.features": "+avx99"})
    path = tmp_path / "future.tsm"
    write_artifact(dataclasses.replace(recipe, target=future), path)
    with pytest.raises(TargetError, match=r"needs a processor with .*avx99"):
        Executable.load(path)


def read_artifact_of(executable: Executable, folder: Path) -> Any:
    executable.save(folder / "m.tsm")
    return read_artifact(folder / "m.tsm")


# -- schedules from the database ----------------------------------------------------------------
def record(workload: Workload, seconds: float, **changes: Any) -> TuningRecord:
    """The default configuration with changes, as if measured on hardware."""
    target = host_target()
    config = default_of(workload, target)
    changed = type(config).of({**config, **changes})
    result = MeasureResult("ok", "hardware", (seconds,) * 3)
    return TuningRecord.of(workload, target, changed, result)


def test_schedules_come_from_the_database(database: Database, inputs: dict[str, Any]) -> None:
    graph = import_model(MODEL)
    (task,) = extract_tasks(graph, host_target())
    near = Workload.parse("matmul m=4 n=5 k=8 const=b epilogue=residual,relu")
    database.add([record(near, 1e-6, m_tile=2)])
    fallback = build(graph, host_target(), database)
    assert (fallback.report.fallback, fallback.report.default) == (1, 0)
    assert '"m_tile":2' in fallback.recipe.steps[0].config
    with pytest.raises(ModelError, match="1 workloads of 'g' have no"):
        build(graph, host_target(), database, BuildOptions(require_tuned=True))
    database.add([record(task.workload, 2e-6, m_tile=1), record(task.workload, 9e-6, m_tile=3)])
    few = build(graph, host_target(), database).report
    assert (few.tuned, few.measured, few.default) == (0, 1, 0)
    with pytest.raises(ModelError, match="1 measured"):
        build(graph, host_target(), database, BuildOptions(require_tuned=True))
    database.add([record(task.workload, 9e-6, k_unroll=n) for n in range(30, 37)])
    tuned = build(graph, host_target(), database, BuildOptions(require_tuned=True))
    assert (tuned.report.tuned, tuned.report.fallback) == (1, 0)
    assert '"m_tile":1' in tuned.recipe.steps[0].config
    assert tuned.report.estimated_s == pytest.approx(2e-6)
    assert_close(tuned.run(inputs), expected(MODEL, inputs))
    wider = build(graph, host_target(), database, BuildOptions(threads=2))
    assert (wider.report.tuned, wider.report.fallback, wider.report.default) == (0, 1, 0)
    assert '"m_tile":1' in wider.recipe.steps[0].config


def test_a_record_that_is_no_longer_legal_is_passed_over(database: Database) -> None:
    graph = import_model(MODEL)
    (task,) = extract_tasks(graph, host_target())
    database.add([record(task.workload, 1e-9, m_tile=77), record(task.workload, 5e-6)])
    executable = build(graph, host_target(), database)
    assert (executable.report.tuned, executable.report.stale) == (0, 1)
    assert "77" not in executable.recipe.steps[0].config


def test_a_target_without_a_backend_is_named() -> None:
    odd = dataclasses.replace(host_target(), family="quantum")
    with pytest.raises(TargetError, match="its family 'quantum' is for single operators"):
        build(import_model(MODEL), odd)
