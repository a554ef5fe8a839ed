"""Large weights stay in ONNX files: what is read of them is what the parser reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.files.file import read_model
from tilesmith.compiler.onnx.files.mapped import is_mapped, read_mapped, release
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError

_SIZE = 200  # squared: 160 kB of float32


def _model() -> onnx.ModelProto:
    return model_of(
        f"g (float[3, {_SIZE}] x) => (float[3, {_SIZE}] y) {{ a = MatMul(x, w) y = Add(a, b) }}",
        w=random(_SIZE, _SIZE), b=random(_SIZE),
    )  # fmt: skip


def _saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_large_weights_are_not_parsed(tmp_path: Path) -> None:
    model = _model()
    path = _saved(model, tmp_path / "m.onnx")
    content, held = read_mapped(path)
    assert set(held) == {"w"}
    assert is_mapped(held["w"])
    assert len(content) < len(path.read_bytes()) - 4 * _SIZE * _SIZE + 100
    np.testing.assert_array_equal(held["w"], random(_SIZE, _SIZE))
    release()  # nothing is lost
    np.testing.assert_array_equal(held["w"], random(_SIZE, _SIZE))
    skeleton = onnx.ModelProto()
    skeleton.ParseFromString(content)
    for tensor in (*skeleton.graph.initializer, *model.graph.initializer):
        if tensor.name == "w":
            tensor.ClearField("raw_data")
            tensor.ClearField("data_location")
    assert skeleton == model


def test_what_is_compiled_does_not_need_the_file(tmp_path: Path) -> None:
    model = _model()
    path = _saved(model, tmp_path / "m.onnx")
    executable = build(import_model(path), host_target())
    assert not is_mapped(executable.recipe.constants)
    assert not any(is_mapped(memory) for _, memory in executable.recipe.lent)
    path.write_bytes(bytes(path.stat().st_size))
    given = {"x": random(3, _SIZE)}
    assert_close(executable.run(given), expected(model, given), 1e-4)


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint8", "int32", "int64", "uint16", "bool"]
)
def test_every_element_type_of_numpy(dtype: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2, (300, 301)).astype(dtype)
    model = model_of("g (float[1] x) => (float[1] y) { y = Relu(x) }", w=values)
    held = read_mapped(_saved(model, tmp_path / "m.onnx"))[1]
    assert held["w"].dtype == values.dtype
    np.testing.assert_array_equal(held["w"], values)


def _typed(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.float_data.extend(numpy_helper.to_array(tensor).reshape(-1))
    tensor.ClearField("raw_data")


def _twice(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data += b"more"


def _unknown(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def _packed(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = onnx.TensorProto.INT4


@pytest.mark.parametrize("change", [_typed, _twice, _unknown, _packed])
def test_what_is_not_as_usual_stays_with_the_parser(change: Any, tmp_path: Path) -> None:
    model = _model()
    change(model)
    path = _saved(model, tmp_path / "m.onnx")
    content, held = read_mapped(path)
    assert not held
    found = onnx.ModelProto()
    found.ParseFromString(content)
    assert found == model


def test_models_that_onnx_converts_are_parsed_whole(tmp_path: Path) -> None:
    model = _model()
    model.opset_import[0].version = 6
    assert not read_model(_saved(model, tmp_path / "m.onnx")).held


def test_damaged_files_are_refused_as_before(tmp_path: Path) -> None:
    content = _model().SerializeToString()
    rng = np.random.default_rng(0)
    for case in range(60):
        damaged = bytearray(content)
        for at in rng.integers(0, min(len(content), 2000), 1 + case % 3):
            damaged[at] = int(rng.integers(256))
        path = tmp_path / "m.onnx"
        path.write_bytes(damaged[: len(content) - int(rng.integers(2)) * int(rng.integers(500))])
        try:
            plain = onnx.ModelProto.FromString(path.read_bytes())
        except Exception:
            plain = None
        try:
            read = read_model(path)
        except ModelError:
            continue
        assert plain is not None
        assert {t.name for t in read.proto.graph.initializer} == {
            t.name for t in plain.graph.initializer
        }
