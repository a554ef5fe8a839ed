"""Models whose sizes vary, as scripts meet them: `--shape sequence=1..2048`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from tests.end_to_end.command import refuse, save_model, succeed


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Two layers on rows, as many as there are."""
    rng = np.random.default_rng(3)
    weights = {"v": rng.standard_normal((8, 6)), "w": rng.standard_normal((6, 3))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w"], ["y"]),
        ],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path / "layers.onnx"
    onnx.save(model, path)
    return path


def wanted(model: Path, x: np.ndarray) -> np.ndarray:
    v, w = (numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer)
    return np.maximum(x @ v, 0) @ w


def test_one_artifact_runs_every_size(layers: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "layers.tsm"
    report = succeed("compile", layers, "--shape", "rows=1..40", "-o", artifact)
    assert report["sizes"] == {"rows": [1, 40]}
    assert report["variants"][0]["region"] == {"rows": [1, 1]}
    assert all(variant["host"] == 0 for variant in report["variants"])
    for rows in (1, 2, 7, 37, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        out = tmp_path / "out.npz"
        succeed("run", artifact, "--input", f"x={tmp_path / 'x.npy'}", "--output", out)
        np.testing.assert_allclose(np.load(out)["y"], wanted(layers, x), rtol=1e-4, atol=1e-5)
    assert succeed("run", artifact, "--shape", "rows=9")["outputs"]["y"]["shape"] == [9, 3]
    assert succeed("bench", artifact, "--seconds", "0.1", "--shape", "rows=5")["median_ms"] > 0
    assert succeed("simulate", artifact, "--shape", "rows=5")["latency_us"] > 0


def test_a_size_may_be_named_by_itself(layers: Path) -> None:
    assert succeed("run", layers, "--shape", "rows=5")["outputs"]["y"]["shape"] == [5, 3]
    assert succeed("run", layers, "--shape", "x=1..6x8")["outputs"]["y"]["shape"][1] == 3


def test_tuning_a_range_serves_compiling_it(layers: Path, tmp_path: Path) -> None:
    database, artifact = tmp_path / "tuning.db", tmp_path / "layers.tsm"
    ranges = ("--shape", "rows=1..40", "--database", database)
    tuned = succeed("tune", layers, *ranges, "--measure", "simulator", "--trials", "72")
    assert len(tuned["tasks"]) == 4, "two products at two sizes"
    report = succeed("compile", layers, *ranges, "-o", artifact, "--require-tuned")
    assert [variant["tuned"] for variant in report["variants"]] == [2, 2]


def test_the_api_takes_ranges(layers: Path, tmp_path: Path) -> None:
    model = ts.compile(layers, shapes={"rows": (1, 16)})
    model.save(tmp_path / "m.tsm")
    x = np.ones((11, 8), np.float32)
    for found in (model, ts.load(tmp_path / "m.tsm")):
        np.testing.assert_allclose(found.run({"x": x})["y"], wanted(layers, x), rtol=1e-4)
    with pytest.raises(ts.ModelError, match=r"axis 0 \(rows\) of input 'x' .* is 17; .* 1 to 16"):
        model.run({"x": np.ones((17, 8), np.float32)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows=4..1", ("rows=4..1", "the least comes first")),
        ("rows=0..4", ("rows=0..4", "begin at 1")),
        ("rows=..4", ("rows=..4", "NAME=1..64")),
        ("rows=1...4", ("rows=1...4", "NAME=1..64")),
        ("columns=1..4", ("'columns'", "no input and no symbolic dimension", "rows")),
        ("x=1..4x9", ("axis 1", "'x'", "is 8", "9")),
        ("x=1..4", ("'x'", "2 axes")),
    ],
)
def test_what_is_no_range_is_refused(
    layers: Path, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    message = refuse("compile", layers, "--shape", text, "-o", tmp_path / "m.tsm")
    for word in words:
        assert word in message
    assert not (tmp_path / "m.tsm").exists()


def test_accelerators_take_one_size(layers: Path, tmp_path: Path) -> None:
    message = refuse(
        "compile", layers, "--target", "trn1", "--shape", "rows=1..4", "-o", tmp_path / "m.tsm"
    )
    assert "has no kernels for ranges of sizes" in message and "rows=4" in message
    message = refuse("run", layers, "--shape", "rows=1..4", "--shape", "x=3x8")
    assert "given both as" in message


@pytest.mark.parametrize(
    "shapes",
    [{"N": (2, 6)}, {"N": [2, 6]}, {"x": ((2, 6), 8)}, {"x": [[2, 6], 8]}, {"N": 4}, {"x": [4, 8]}],
)
def test_ranges_and_sizes_of_any_spelling_are_looked_at_in_the_middle(
    shapes: Any, tmp_path: Path
) -> None:
    path = save_model(tmp_path / "m.onnx", ("N", 8))
    (row,) = ts.compare(path, database="none", shapes=shapes).tensors
    assert row.shape[0] in (4, 5) and row.shape[1] == 6
    assert ts.profile(path, database="none", shapes=shapes, runs=5).ops
