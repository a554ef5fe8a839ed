"""Models of 16-bit floats: kernels compute them, the caller keeps their types, casts round."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.compiler.model_builder import model_of
from tests.compiler.test_narrow_kernels import image, layers, workloads
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.expressions.dtypes import to_numpy

TYPES = {"float16": 10, "bfloat16": 16}
LIMITS = {"float16": 3e-3, "bfloat16": 2e-2}


def in_type(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """A float32 model whose every tensor is of another type."""
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32:
            narrow = array.astype(to_numpy(dtype))
            made = onnx.helper.make_tensor(
                weight.name, TYPES[dtype], array.shape, narrow.tobytes(), raw=True
            )
            weight.CopyFrom(made)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TYPES[dtype]
    model.opset_import[0].version = 22  # since when convolutions are for bfloat16
    return model


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", [layers, image])
def test_narrow_models_are_kernels(make: object, dtype: str, precision: str) -> None:
    assert callable(make)
    plain = build(import_model(make()), host_target())
    options = BuildOptions(precision=precision)
    executable = build(import_model(in_type(make(), dtype)), host_target(), options=options)
    x = np.random.default_rng(0).standard_normal(executable.inputs[0].dims)
    x = x.astype(to_numpy(dtype))
    found = executable.run({"x": x})["y"]
    wanted = plain.run({"x": x.astype(np.float32)})["y"]
    assert found.dtype == to_numpy(dtype) and executable.report.host == 0
    limit = max(LIMITS[dtype], LIMITS["bfloat16"] if precision == "bf16" else 0)
    error = np.abs(found.astype(np.float32) - wanted).max() / np.abs(wanted).max()
    assert error <= limit
    assert executable.report.precision == precision


def test_a_cast_rounds() -> None:
    text = """agraph (float[64] x) => (float[64] y, float16[64] h, bfloat16[64] b)
    { h = Cast<to=10>(x) g = Cast<to=1>(h) b = Cast<to=16>(g) w = Cast<to=1>(b) y = Add(g, w) }"""
    graph = import_model(model_of(text))
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    found = build(graph, host_target()).run({"x": x})
    half = x.astype(np.float16)
    brain = half.astype(np.float32).astype(to_numpy("bfloat16"))
    np.testing.assert_array_equal(found["h"], half)
    np.testing.assert_array_equal(found["b"].view("u2"), brain.view("u2"))
    wanted = half.astype(np.float32) + brain.astype(np.float32)
    np.testing.assert_array_equal(found["y"], wanted)
    assert all(w.operator == "elementwise" for w in workloads(scheduled(graph, host_target())))
