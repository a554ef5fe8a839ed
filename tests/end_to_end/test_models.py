"""Whole models against onnxruntime: what the benchmarks run, compiled with default schedules."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import models
from tests.compiler.model_builder import expected, inputs_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, extract_tasks, prepared
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.seed_weights import seed_weights
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable

LIGHT = sorted(Path(str(files("onnx") / "backend" / "test" / "data" / "light")).glob("*.onnx"))


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """max|a - b| / max|b|"""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def before_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without a final softmax, which would hide errors."""
    if model.graph.node[-1].op_type == "Softmax":
        name = model.graph.node[-1].input[0]
        del model.graph.node[-1]
        model.graph.output[0].name = name
        model.graph.output[0].type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(model)
    return model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("resnet50", models.resnet50),
        ("mlp", models.mlp),
        ("encoder", lambda: models.encoder(layers=1)),
    ],
)
def test_models_run_natively_with_small_errors(
    name: str, model: models.Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    proto = before_softmax(model())
    graph = import_model(proto)
    executable = build(graph, host_target())
    assert executable.report.host == 0, executable.report.host_nodes
    inputs = inputs_of(graph)
    (wanted,) = expected(proto, inputs).values()
    (found,) = executable.run(inputs).values()
    assert found.shape == wanted.shape
    assert error(found, wanted) <= 1e-4
    executable.save(tmp_path / "model.tsm")
    (again,) = Executable.load(tmp_path / "model.tsm").run(inputs).values()
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize(
    "path", [path for path in LIGHT if "vgg19" not in path.stem], ids=lambda path: path.stem
)
def test_every_light_model_becomes_kernels(path: Path) -> None:
    graph = prepared(import_model(path))
    verify(graph)
    hosts = {node.operator for node in graph.nodes if node.kind == "host"}
    assert hosts == set()
    assert len({node.workload for node in graph.nodes if node.workload}) > 3


def test_squeezenet_lowered_equals_onnxruntime() -> None:
    proto = before_softmax(models.squeezenet())
    graph = prepared(import_model(proto))
    inputs = inputs_of(graph)
    (wanted,) = expected(proto, inputs).values()
    (found,) = run_reference(graph, inputs).values()
    assert error(found, wanted) <= 1e-5
    joins = [node for node in graph.nodes if node.kind == "join"]
    assert len(joins) == 8


def test_seeded_weights_are_reproducible_and_sane() -> None:
    light = onnx.load(str(next(path for path in LIGHT if "shufflenet" in path.stem)))
    before = light.SerializeToString()
    first, second, other = seed_weights(light), seed_weights(light), seed_weights(light, seed=1)
    assert light.SerializeToString() == before
    assert first.SerializeToString() == second.SerializeToString() != other.SerializeToString()
    assert {node.op_type for node in first.graph.node}.isdisjoint({"ConstantOfShape"})
    assert [value.name for value in first.graph.input] == ["gpu_0/data_0"]
    onnx.checker.check_model(first)
    weights = [onnx.numpy_helper.to_array(t) for t in first.graph.initializer]
    convolutions = [w for w in weights if w.ndim == 4]
    assert len(convolutions) == 49
    for weight in convolutions:
        assert weight.std() == pytest.approx(np.sqrt(2 / weight[0].size), rel=0.05)


def test_the_benchmark_models_are_valid(tmp_path: Path) -> None:
    for path in models.write_models(tmp_path, ["mlp", "mobilenet_v2"]):
        onnx.checker.check_model(str(path), full_check=True)
    graph = import_model(tmp_path / "mobilenet_v2.onnx")
    flops = 0
    for task in extract_tasks(graph, host_target()):
        workload = task.workload
        if workload.operator in ("conv2d", "depthwise_conv2d"):
            from tilesmith.search_space.workloads.template import template_of

            flops += task.weight * template_of(workload.operator).flops(workload)
    assert flops / 2 == pytest.approx(300e6, rel=0.02)  # multiply-adds, table 4 of the paper
