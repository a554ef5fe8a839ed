"""`tilesmith compare` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import tilesmith as ts
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import invoke, refuse, save_model, succeed

X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)


@pytest.mark.parametrize("reference", ["onnxruntime", "onnx", "float64"])
def test_a_right_model_is_clean_against_every_reference(
    reference: str, model: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", X)
    given = ("--input", f"x={tmp_path / 'x.npy'}")
    found = succeed("compare", model, "--reference", reference, *given)
    assert found["first_bad"] is None and found["first_nan"] is None and found["clean"]
    assert found["reference"].startswith(reference)
    (row,) = found["tensors"]
    assert row["name"] == "y" and row["max_rel_err"] < 1e-5 and row["cosine"] > 0.999999
    assert row["verdict"] == "ok" and row["node"] == "y" and row["operator"] == "Relu"


def test_an_artifact_of_another_model_is_not_clean(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact)
    assert succeed("compare", artifact, "--model", model)["clean"]
    proto = onnx.load(str(model))
    weight = numpy_helper.to_array(proto.graph.initializer[0]) * 1.5
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    result = invoke("compare", artifact, "--model", other, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["first_bad"] == "y"
    text = invoke("compare", artifact, "--model", other).stdout
    assert "first bad: 'y', written by Relu 'y'" in text
    assert max(map(len, text.splitlines()[:3])) <= 80


def test_what_cannot_be_compared_is_refused(model: Path, tmp_path: Path) -> None:
    assert "'nothing' is not in the compiled model" in refuse(
        "compare", model, "--replace", "nothing"
    )
    assert "leaves no room for rounding" in refuse("compare", model, "--tolerance", "0")
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact)
    (tmp_path / "elsewhere").mkdir()
    moved = artifact.rename(tmp_path / "elsewhere" / "moved.tsm")
    assert "name it with --model" in refuse("compare", moved)


def test_the_api_says_the_same(tmp_path: Path) -> None:
    report = ts.compare(save_model(tmp_path / "m.onnx", ("batch", 8)), inputs={"x": X})
    assert report.clean and [row.name for row in report.tensors] == ["y"]
    assert report.tensors[0].shape == (4, 6)


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_inputs_that_onnxruntime_takes_no_arrays_of(dtype: int, tmp_path: Path) -> None:
    assert succeed("compare", save_model(tmp_path / "m.onnx", dtype=dtype))["clean"]


def test_a_model_without_inputs_is_compared(tmp_path: Path) -> None:
    proto = onnx.load(save_model(tmp_path / "m.onnx"))
    proto.graph.initializer.append(numpy_helper.from_array(X, "x"))
    del proto.graph.input[:]
    onnx.save(proto, tmp_path / "m.onnx")
    found = succeed("compare", tmp_path / "m.onnx")
    assert found["clean"] and [row["name"] for row in found["tensors"]] == ["y"]
    assert found["notes"] == []


def test_a_model_that_onnxruntime_does_not_take_is_compared_with_the_next_reference(
    tmp_path: Path,
) -> None:
    model = model_of(
        """g (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y) {
        y = Conv<auto_pad="SAME_UPPER", dilations=[2, 2]>(x, w) }""",
        w=random(1, 1, 3, 3),
    )
    onnx.save(model, tmp_path / "m.onnx")
    found = succeed("compare", tmp_path / "m.onnx")
    assert found["reference"] == "onnx.reference" and len(found["tensors"]) == 1
    assert "--reference onnx" in refuse(
        "compare", tmp_path / "m.onnx", "--reference", "onnxruntime"
    )


def test_a_comparison_tells_what_it_is_at(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.display.counting._LINE_EVERY_S", 1e-4)
    said = invoke("compare", model, "--reference", "onnx").stderr
    stages = ["compiling the model", "tensors by the reference", "comparing"]
    found = [said.find(stage) for stage in stages]
    assert -1 not in found and found == sorted(found)
