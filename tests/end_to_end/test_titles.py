"""Messages and pages call a model by its file, whatever an exporter called the graph in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.end_to_end.command import invoke

GRAPH = "main_graph"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models whose graphs have the name that exporters give."""
    folder = tmp_path_factory.mktemp("titles")
    weight = numpy_helper.from_array(np.ones((8, 6), np.float32), "w")
    nodes = {
        "product": (helper.make_node("MatMul", ["x", "w"], ["y"]), TensorProto.FLOAT, (4, 8)),
        "texts": (helper.make_node("StringNormalizer", ["x"], ["y"]), TensorProto.STRING, (4,)),
        "relu": (helper.make_node("Relu", ["x"], ["y"]), TensorProto.FLOAT, ("n", 8)),
        "drawn": (helper.make_node("RandomNormalLike", ["x"], ["y"]), TensorProto.FLOAT, (4,)),
    }
    for name, (node, dtype, shape) in nodes.items():
        graph = helper.make_graph(
            [node], GRAPH, [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info("y", dtype, None)],
            [weight] if name == "product" else [],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, str(folder / f"{name}.onnx"))
    varying = ("compile", folder / "relu.onnx", "-o", folder / "relu.tsm", "--shape", "n=1..8")
    assert invoke(*varying, "--database", "none").exit_code == 0
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "run texts.onnx",
        "run relu.tsm --shape q=3",
        "bisect drawn.onnx",
        "tune texts.onnx --trials 1 --target trn1 --database t.db",
        "shard product.onnx --mesh trn1.32xlarge --pipeline 16",
        "compile texts.onnx -o t.so --emit library",
    ],
)
def test_a_refusal_names_the_file(place: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    name = words.split()[1].rpartition(".")[0]
    result = invoke(*words.split())
    assert result.exit_code == 2 and GRAPH not in result.stderr, result.stderr
    assert f"'{name}.onnx'" in result.stderr, result.stderr


@pytest.mark.parametrize("target", ["trn1", "lpu1"])
@pytest.mark.parametrize(("option", "file"), [("--page", "p.html"), ("--trace", "t.json")])
def test_a_timeline_has_the_files_name(place: Path, target: str, option: str, file: str) -> None:
    written = place / file
    asked = ("simulate", place / "product.onnx", "--target", target, "--database", "none")
    assert invoke(*asked, option, written).exit_code == 0
    text = written.read_text()
    assert f"product.onnx on {target}" in text and GRAPH not in text
