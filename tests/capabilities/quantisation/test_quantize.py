"""`tilesmith quantize` and `tilesmith.quantize`: data in every form, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from tests.end_to_end.command import invoke, refuse, save_model, succeed
from tilesmith.capabilities.quantisation.api import AskedOfQuantising
from tilesmith.capabilities.quantisation.jobs import QuantiseRequest

ROWS = np.random.default_rng(0).standard_normal((20, 4, 8)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model.onnx")


def quantised(model: Path, *arguments: str | Path | int) -> dict[str, object]:
    return dict(succeed("quantize", model, "-o", model.parent / "out.onnx", *arguments))


def test_keywords_of_the_api_are_the_fields_of_a_request() -> None:
    named = {field.name for field in fields(QuantiseRequest)} - {"model", "data"}
    assert set(AskedOfQuantising.__annotations__) == named


def test_the_written_file_is_compiled_and_run(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    found = quantised(model, "--data", tmp_path / "rows.npy", "--sensitivities")
    assert found["calibrated_samples"] == 20
    assert found["measured_samples"] == 16
    assert len(found["layers"]) == len(found["sensitivities"]) == 1  # type: ignore[arg-type]
    assert 0 < found["error"] < 0.02  # type: ignore[operator]
    ran = ts.compile(tmp_path / "out.onnx").run({"x": ROWS[0]})["y"]
    np.testing.assert_allclose(ran, ts.compile(model).run({"x": ROWS[0]})["y"], atol=0.1)


def test_what_is_printed(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = invoke("quantize", model, "-o", out, "--random", "3", "--budget", "0")
    assert result.exit_code == 0
    assert "0 of 1 layers in int8" in result.stdout
    assert "in fp32: MatMul_0" in result.stdout
    assert "top-1 agrees with fp32 on 100.0% of 12 rows" in result.stdout
    assert "no calibration" in result.stderr


def test_data_may_be_an_archive_a_folder_or_arrays(model: Path, tmp_path: Path) -> None:
    whole, many, named = (tmp_path / name for name in ("d.npz", "many", "named"))
    np.savez(whole, x=ROWS)
    many.mkdir()
    named.mkdir()
    for number, row in enumerate(ROWS):
        np.save(many / f"{number:02}.npy", row)
    np.save(named / "x.npy", ROWS.reshape(80, 8))
    files = [ts.quantize(model, path).model for path in (whole, str(many), named)]
    arrays = [{"x": row} for row in ROWS]
    files += [ts.quantize(model, data).model for data in (ROWS, {"x": ROWS}, arrays, [whole])]
    assert len({found.SerializeToString() for found in files}) == 1


def test_rows_of_any_number_are_samples(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx", ("rows", 8))
    found = ts.quantize(model, ROWS.reshape(80, 8), samples=80)
    assert (found.report.calibrated, found.report.accuracy.rows) == (80, 80)
    assert ts.quantize(model, random=2, shapes={"rows": (3,)}).report.accuracy.rows == 6


def test_wrong_data_is_refused_in_a_sentence(model: Path, tmp_path: Path) -> None:
    for name, array in {
        "shape": np.zeros((3, 9), np.float32), "dtype": np.zeros((4, 8), np.uint8),
        "none": np.zeros((0, 4, 8), np.float32), "nan": np.full((4, 8), np.nan, np.float32),
        "infinite": np.full((4, 8), -np.inf, np.float32),
    }.items():  # fmt: skip
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "other.npz", z=ROWS)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "shape.npy": "4x8 is expected", "dtype.npy": "float32 is expected",
        "none.npy": "holds no sample", "nan.npy": "not-a-number in sample 0",
        "infinite.npy": "infinities", "other.npz": "no such input", "text.npy": "plain numbers",
        "empty": "holds no .npy", "missing": "does not exist",
    }.items():  # fmt: skip
        out = tmp_path / "out.onnx"
        assert words in refuse("quantize", model, "-o", out, "--data", tmp_path / name)
        assert not out.exists()


def test_inputs_with_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    path = two_inputs(tmp_path / "two.onnx")
    with pytest.raises(ts.InputError, match="20 of 'x', 3 of 'z'"):
        ts.quantize(path, {"x": ROWS, "z": ROWS[:3]})
    with pytest.raises(ts.InputError, match="lacks the input 'z'"):
        ts.quantize(path, {"x": ROWS})
    with pytest.raises(ts.InputError, match="inputs x, z"):
        ts.quantize(path, ROWS)


def two_inputs(path: Path) -> Path:
    """y = (x + z) w."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 8)) for n in ("x", "z")]
    nodes = [
        helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])
    ]  # fmt: skip
    weights = [numpy_helper.from_array(np.ones((8, 3), np.float32), "w")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "two", values, outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def test_wrong_models_and_options_are_refused_in_a_sentence(model: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "out.onnx", tmp_path / "rows.npy"
    np.save(data, ROWS)
    quantised(model, "--data", data)
    half = save_model(tmp_path / "half.onnx", dtype=TensorProto.FLOAT16)
    for words, arguments in {
        "needs calibration data": (model, "-o", out),
        "quantised already": (out, "-o", tmp_path / "again.onnx", "--data", data),
        "nothing in 'half.onnx'": (half, "-o", out, "--random", "1"),
        "no node 'MatMul_1', but 'MatMul_0'": (
            model, "-o", out, "--data", data, "--keep", "MatMul_1"
        ),
        "leave nothing": (model, "-o", out, "--data", data, "--keep", "MatMul_0"),
        "'Softmax' cannot": (model, "-o", out, "--data", data, "--operators", "Softmax"),
        "unknown calibration method": (model, "-o", out, "--data", data, "--method", "best"),
        "does not exist": (tmp_path / "no.onnx", "-o", out, "--data", data),
        "its folder does not": (model, "-o", tmp_path / "a" / "b.onnx", "--data", data),
        "what would be read": (model, "-o", model, "--data", data),
    }.items():  # fmt: skip
        assert words in refuse("quantize", *map(str, arguments)), words


def test_int8_is_of_quantised_models_or_takes_data(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.npy"
    np.save(data, ROWS)
    said = refuse("run", model, "--precision", "int8")
    assert "tilesmith quantize" in said
    assert "--calibration" in said
    assert "is for the precision int8" in refuse("run", model, "--calibration", data)
    operator = ("--op", "softmax shape=4x4", "--database", tmp_path / "t.db", "--target", "cpu")
    assert "is of models and of products" in refuse(
        "tune", *map(str, operator), "--precision", "int8"
    )
    quantised = ts.quantize(model, ROWS, fuse_residuals=True).model
    wanted = ts.compile(quantised).run({"x": ROWS[0]})["y"]
    for compiled in (
        ts.compile(model, precision="int8", calibration=ROWS),
        ts.compile(quantised, precision="int8"),
    ):
        assert np.array_equal(compiled.run({"x": ROWS[0]})["y"], wanted)
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact, "--precision", "int8", "--calibration", data)
    assert np.array_equal(ts.load(artifact).run({"x": ROWS[0]})["y"], wanted)
    tuned = ("--database", tmp_path / "t.db", "--target", "cpu", "--trials", "1")
    succeed("tune", model, *tuned, "--precision", "int8", "--calibration", data)


def test_bench_says_what_int8_costs_beside_fp32(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.npy"
    np.save(data, ROWS)
    asked = ("bench", model, "--seconds", "0.1", "--precision", "int8")
    found = succeed(*asked, "--calibration", data)["beside_fp32"]
    assert 0 < found["error"] < 0.02
    assert found["rows"] == 64
    whole = ts.quantize(model, ROWS, samples=20).report.accuracy
    assert whole is not None
    assert found["error"] == pytest.approx(whole.error, rel=0.2)
    quantised(model, "--data", data)
    result = invoke("bench", tmp_path / "out.onnx", *asked[2:])
    assert result.exit_code == 0
    assert "beside fp32" not in result.stdout
    assert "beside fp32" in invoke(*asked, "--calibration", data).stdout


def test_large_models_have_their_weights_in_a_file_beside_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ts.quantize(model, ROWS)
    wanted = ts.compile(found.model).run({"x": ROWS[0]})["y"]
    monkeypatch.setattr("tilesmith.capabilities.quantisation.jobs._MOST_BYTES", 10)
    for _ in range(2):  # what is there is written anew
        found.save(tmp_path / "large.onnx")
        size = (tmp_path / "large.onnx.data").stat().st_size
        assert size == sum(len(t.raw_data) for t in found.model.graph.initializer)
    assert np.array_equal(ts.compile(tmp_path / "large.onnx").run({"x": ROWS[0]})["y"], wanted)
    again = ts.quantize(_external(model, tmp_path), ROWS).model
    assert again.SerializeToString() == found.model.SerializeToString()


def _external(model: Path, folder: Path) -> Path:
    """The same model with its weights in another file."""
    path = folder / "external.onnx"
    onnx.save_model(
        onnx.load(str(model)), str(path), save_as_external_data=True, location="w.data",
        size_threshold=0,
    )  # fmt: skip
    return path


def test_an_input_of_one_number_takes_one_array_or_one_number_a_sample(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8)),
        helper.make_tensor_value_info("k", TensorProto.FLOAT, ()),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])
    ]  # fmt: skip
    weights = [numpy_helper.from_array(np.ones((8, 3), np.float32), "w")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "scaled", values, outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "scaled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    one = ts.quantize(path, {"x": ROWS[0], "k": np.float32(2)})
    assert one.report.calibrated == 1
    many = ts.quantize(path, {"x": ROWS, "k": np.linspace(1, 2, 20, dtype=np.float32)})
    assert many.report.calibrated == 20
    with pytest.raises(ts.InputError, match="1 of 'k'"):
        ts.quantize(path, {"x": ROWS, "k": np.float32(2)})
