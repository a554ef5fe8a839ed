"""Models of 16-bit floats: kernels compute them, the caller keeps their types, casts round."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.compiler.model_builder import expected, model_of, random
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


INSIDE = """agraph (float[1,8,12,12] x) => (float[1,8,12,12] y)
{ b = Cast<to=16>(x) c = Conv<pads=[1,1,1,1]>(b, first) r = Relu(c)
  d = Conv<pads=[1,1,1,1]>(r, first) a = Add(d, b) f = Cast<to=1>(a)
  y = Conv<pads=[1,1,1,1]>(f, second) }"""


def inside() -> onnx.ModelProto:
    """A float32 model whose first half computes in bfloat16."""
    weights = random(8, 8, 3, 3) / 8
    model = model_of(INSIDE, first=weights, second=weights)
    tensor = next(t for t in model.graph.initializer if t.name == "first")
    narrow = weights.astype(to_numpy("bfloat16"))
    tensor.CopyFrom(
        onnx.helper.make_tensor("first", TYPES["bfloat16"], weights.shape, narrow.tobytes(), True)
    )
    model.opset_import[0].version = 22
    return model


def test_what_a_float32_model_has_in_bfloat16_is_computed_so() -> None:
    graph = scheduled(import_model(inside()), host_target())
    types = [w.dtype for w in workloads(graph) if w.operator == "conv2d"]
    assert types == ["bfloat16", "bfloat16", "float32"]
    executable = build(import_model(inside()), host_target())
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)
    plain = model_of(INSIDE.replace("Cast<to=16>", "Identity").replace("Cast<to=1>", "Identity"),
                     **{t.name: numpy_helper.to_array(t).astype(np.float32)
                        for t in inside().graph.initializer})  # fmt: skip
    found, wanted = executable.run({"x": x})["y"], expected(plain, {"x": x})["y"]
    assert np.linalg.norm(found - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_where_bfloat16_ends_numbers_are_rounded() -> None:
    text = """agraph (float[1,64] x) => (float[1,8] y)
    { b = Cast<to=16>(x) m = MatMul(b, w) y = Cast<to=1>(m) }"""
    model = model_of(text, w=random(64, 8))
    weights = numpy_helper.to_array(model.graph.initializer[0]).astype(to_numpy("bfloat16"))
    model.graph.initializer[0].CopyFrom(
        onnx.helper.make_tensor("w", TYPES["bfloat16"], weights.shape, weights.tobytes(), True)
    )
    x = np.random.default_rng(2).standard_normal((1, 64)).astype(np.float32)
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    assert np.array_equal(found, found.astype(to_numpy("bfloat16")).astype(np.float32))
    exact = x.astype(to_numpy("bfloat16")).astype(np.float64) @ weights.astype(np.float64)
    assert np.abs(found - exact).max() <= 2.0**-8 * np.abs(exact).max()


def test_what_a_cast_rounds_is_given_as_it_is() -> None:
    text = "agraph (float[64] x) => (float16[64] h) { h = Cast<to=10>(x) }"
    executable = build(import_model(model_of(text)), host_target())
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    np.testing.assert_array_equal(executable.run({"x": x})["h"], x.astype(np.float16))
    assert len(executable.recipe.steps) == 1
