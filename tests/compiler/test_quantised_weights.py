"""Constants quantised by blocks, as ONNX spells them, stay packed beside products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.compiler.model_builder import assert_close, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

LIMITS = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}


def dequantised(kind: str, shape: tuple[int, int], axis: int, zeros: bool) -> dict[str, Any]:
    """Random codes, scales of blocks of 32 and zero points."""
    rng = np.random.default_rng((len(kind), *shape, axis))
    blocks = tuple(-(-n // 32) if i == axis else n for i, n in enumerate(shape))
    dtype = getattr(ml_dtypes, kind) if kind.endswith("4") else np.dtype(kind)
    low, high = LIMITS[kind]
    found = {"q": rng.integers(low, high, shape).astype(dtype)}
    found["s"] = (rng.random(blocks) / high).astype(np.float32)
    if zeros:
        found["z"] = rng.integers(low, high, blocks).astype(dtype)
    return found


def model(kind: str, form: str, zeros: bool) -> onnx.ModelProto:
    """A product by weights of 96 rows and 56 columns, in one of ONNX's spellings."""
    axis = 1 if form in ("turned", "gemm") else 0
    weights = dequantised(kind, (56, 96) if axis else (96, 56), axis, zeros)
    nodes = [helper.make_node("DequantizeLinear", list(weights), ["w"], axis=axis, block_size=32)]
    if form == "turned":
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    matrix = "t" if form == "turned" else "w"
    if form == "gemm":
        weights["c"] = random(56)
        nodes.append(helper.make_node("Gemm", ["x", matrix, "c"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["x", matrix], ["y"]))
    shape = [5, 96] if form == "gemm" else [2, 5, 96]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


def expected(made: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    """What onnxruntime computes of the model as it is: optimised, it quantises activations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {"y": session.run(["y"], inputs)[0]}


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("form", ["plain", "turned", "gemm"])
@pytest.mark.parametrize("kind", list(LIMITS))
def test_products_take_weights_as_they_are_packed(kind: str, form: str, zeros: bool) -> None:
    made = model(kind, form, zeros)
    inputs = {"x": random(*(5, 96) if form == "gemm" else (2, 5, 96))}
    executable = build(import_model(made), host_target())
    assert_close(executable.run(inputs), expected(made, inputs), 2e-5)
    (step,) = executable.recipe.steps
    bits = "" if kind.endswith("4") else " bits=8"
    assert f"block_quantised_matmul m={inputs['x'].size // 96} n=56 k=96{bits}" in step.workload  # type: ignore[union-attr]


def test_weights_of_other_forms_are_unpacked() -> None:
    made = model("int8", "plain", False)
    for attribute in made.graph.node[0].attribute:
        if attribute.name == "block_size":
            attribute.i = 24
    made.graph.initializer[1].CopyFrom(
        numpy_helper.from_array(np.ones((4, 56), np.float32) / 128, "s")
    )
    inputs = {"x": random(2, 5, 96)}
    executable = build(import_model(made), host_target())
    assert_close(executable.run(inputs), expected(made, inputs), 2e-5)
    assert executable.recipe.steps[0].workload.startswith("matmul")  # type: ignore[union-attr]


def test_targets_without_packed_weights_multiply_by_matrices() -> None:
    made = model("uint4", "gemm", True)
    lowered = scheduled(import_model(made), load_target("trn1"))
    texts = [str(node.workload) for node in lowered.nodes if node.workload is not None]
    assert any("matmul m=5 n=56 k=96" in text for text in texts), texts
    assert not any("block_quantised" in text for text in texts)
    inputs = {"x": random(5, 96)}
    assert_close(run_reference(lowered, inputs), expected(made, inputs), 2e-5)
