"""onnxruntime runs models of a newer format than it knows, with weights beside them, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilesmith.compiler.onnx.files.for_onnxruntime import TAKEN, as_given, prepared
from tilesmith.search_space.support.errors import ModelError

runtime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("ir_version", [8, TAKEN, 99])
@pytest.mark.parametrize("outside", [False, True])
def test_whatever_the_version_of_the_format(tmp_path: Path, ir_version: int, outside: bool) -> None:
    w = np.arange(2048, dtype=np.float32).reshape(1, -1)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2048])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2048])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = ir_version
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=outside, location="w.bin")
    options = runtime.SessionOptions()
    source = as_given(path, options)
    assert isinstance(source, bytes) == (ir_version > TAKEN)
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    x = np.ones((3, 2048), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + w)


def test_a_path_that_it_does_not_take_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "by\udcfftes"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    (folder / "model.onnx").write_bytes(onnx.ModelProto().SerializeToString())
    with pytest.raises(ModelError, match="no path that is not UTF-8"):
        prepared(folder / "model.onnx", runtime.SessionOptions())
