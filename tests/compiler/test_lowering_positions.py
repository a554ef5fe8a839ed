"""ArgMax, ArgMin, CumSum, OneHot, TopK, Trilu as kernels: what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import model_of, random
from tests.compiler.test_lowering_indexing import native
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError


def unknown_output(text: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """A model whose output's shape is left to inference."""
    model = model_of(text, opset, **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_indices_of_extremes(operator: str, axis: int, last: int) -> None:
    body = f"{operator}<axis={axis}, select_last_index={last}, keepdims={last}>(x)"
    model = unknown_output(f"g (float[3, 19, 35] x) => (int64 y) {{ y = {body} }}")
    few = np.random.default_rng(0).integers(-2, 3, (3, 19, 35)).astype(np.float32)  # many equal
    native(model, {"x": few})


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_no_number_is_passed_over_but_where_it_is_first(operator: str, axis: int) -> None:
    n, i = np.nan, np.inf
    rows = np.float32(
        [[1, n, 3, 2], [n, 1, 2, 3], [1, 2, 3, n], [n] * 4, [i, n, i, -i], [-i, n, -i, n], [i] * 4]
    )
    x = rows if axis else np.ascontiguousarray(rows.T)
    dims = ", ".join(map(str, x.shape))
    text = f"g (float[{dims}] x) => (int64 y) {{ y = {operator}<axis={axis}>(x) }}"
    native(unknown_output(text), {"x": x})


@pytest.mark.parametrize(("kind", "dtype"), [("int64", np.int64), ("uint8", np.uint8)])
def test_extremes_of_whole_numbers(kind: str, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 40)).astype(dtype)
    text = f"g ({kind}[5, 40] x) => (int64 y) {{ y = ArgMax<axis=1>(x) }}"
    native(unknown_output(text), {"x": x})


def test_an_index_that_a_kernel_made_in_range_is_not_looked_at_again() -> None:
    text = """g (float[2, 9] s, float[9, 3] x) => (float[2, 3] y) {
        i = ArgMax<axis=1, keepdims=0>(s) y = Gather(x, i) }"""
    executable = native(model_of(text), {"s": random(2, 9), "x": random(9, 3)})
    assert not any(getattr(step, "checks", ()) for step in executable.recipe.steps)
    short = text.replace("float[9, 3] x", "float[8, 3] x")
    recipe = build(import_model(model_of(short)), host_target()).recipe
    assert sum(len(getattr(step, "checks", ())) for step in recipe.steps) == 1


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_sums(axis: int, reverse: int, exclusive: int) -> None:
    body = f"CumSum<exclusive={exclusive}, reverse={reverse}>(x, a)"
    text = f"g (float[3, 7, 35] x) => (float[3, 7, 35] y) {{ y = {body} }}"
    native(model_of(text, a=np.int64(axis)), {"x": random(3, 7, 35)})


def test_running_sums_of_masks() -> None:
    """As exporters compute positions."""
    text = """g (int64[2, 19] mask) => (int64[2, 19] y) {
        s = CumSum(mask, one) y = Sub(s, one) }"""
    mask = np.random.default_rng(0).integers(0, 2, (2, 19))
    native(model_of(text, one=np.int64(1)), {"mask": mask})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    text = f"g (int64[5, 7] i) => (float y) {{ y = OneHot<axis={axis}>(i, depth, values) }}"
    weights = {"depth": np.int64(4), "values": np.float32([0.5, 2])}
    indices = np.random.default_rng(0).integers(-6, 7, (5, 7))  # some of them out of range
    native(unknown_output(text, **weights), {"i": indices})


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [0, 3, -2, 1000, -1000])
def test_triangles(k: int, upper: int) -> None:
    text = f"g (float[2, 7, 35] x) => (float[2, 7, 35] y) {{ y = Trilu<upper={upper}>(x, k) }}"
    native(model_of(text, k=np.int64(k)), {"x": random(2, 7, 35)})
    dynamic = text.replace("float[2, 7, 35] x)", "float[2, 7, 35] x, int64 k)", 1)
    native(model_of(dynamic), {"x": random(2, 7, 35), "k": np.array(k)})


def test_triangles_of_any_type() -> None:
    text = """g (bool[7, 19] x, double[7, 19] d, int64[7, 19] i) => (
        bool[7, 19] y, double[7, 19] z, int64[7, 19] w) {
            y = Trilu(x) z = Trilu<upper=0>(d) w = Trilu(i) }"""
    x = random(7, 19)
    native(model_of(text), {"x": x > 0, "d": x.astype(np.float64), "i": (x * 9).astype(np.int64)})


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "k"), [(0, 2), (1, 19), (-1, 5), (2, 1)])
def test_the_largest(axis: int, k: int, largest: int) -> None:
    shape = [3, 19, 137]
    shape[axis] = k
    dims = ", ".join(map(str, shape))
    body = f"v, i = TopK<axis={axis}, largest={largest}>(x, k)"
    text = f"g (float[3, 19, 137] x) => (float[{dims}] v, int64[{dims}] i) {{ {body} }}"
    few = np.random.default_rng(0).integers(-9, 9, (3, 19, 137)).astype(np.float32)  # many equal
    executable = native(model_of(text, k=np.array([k])), {"x": few})
    assert not any(getattr(step, "checks", ()) for step in executable.recipe.steps)
    native(model_of(text, k=np.array([k])), {"x": random(3, 19, 137)})


def test_the_largest_of_special_numbers_and_of_one_output() -> None:
    text = "g (float[2, 8] x) => (int64[2, 4] i) { v, i = TopK(x, k) }"
    x = np.float32([[-0.0, 0.0, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38], [-1] * 8])
    native(model_of(text, k=np.array([4])), {"x": x})
    values = "g (float[2, 8] x) => (float[2, 4] v) { v, i = TopK(x, k) }"
    native(model_of(values, k=np.array([4])), {"x": np.clip(x, -3e38, 3e38)})


def test_the_largest_beside_what_is_no_number() -> None:
    text = "g (float[1, 40] x) => (float[1, 3] v) { v, i = TopK(x, k) }"
    x = random(1, 40)
    x[0, [7, 30]] = np.nan
    found = build(import_model(model_of(text, k=np.array([3]))), host_target()).run({"x": x})["v"]
    assert np.isnan(found[0, :2]).all() and found[0, 2] == np.nanmax(x)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_single_one_is_what_the_first_of_several_is(largest: int, axis: int) -> None:
    n, i = np.nan, np.inf
    rows = np.float32([[1, n, 3, 3], [n, 1, 1, 2], [n] * 4, [-i, n, i, i], [0.0, -0.0, 0, 0]])
    x = np.ascontiguousarray(rows if axis else rows.T)
    found = []
    for k in (1, 2):
        shape = ", ".join(str(k if place == axis else x.shape[place]) for place in (0, 1))
        dims = ", ".join(map(str, x.shape))
        body = f"v, i = TopK<axis={axis}, largest={largest}>(x, k)"
        text = f"g (float[{dims}] x) => (float[{shape}] v, int64[{shape}] i) {{ {body} }}"
        found.append(build(import_model(model_of(text, k=np.array([k]))), host_target()))
    one, two = (executable.run({"x": x}) for executable in found)
    for name in ("v", "i"):
        np.testing.assert_array_equal(one[name], np.take(two[name], [0], axis))
    assert one["i"].ravel().tolist() == ([1, 0, 0, 1, 0] if largest else [0, 1, 0, 0, 0])


@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_that_is_not_there_is_a_sentence(axis: int) -> None:
    text = "g (float[3, 7, 5] x) => (float[3, 7, 5] y) { y = CumSum(x, a) }"
    executable = build(import_model(model_of(text, a=np.int64(axis))), host_target())
    assert executable.report.host == 1
    with pytest.raises(JobError, match="CumSum 'y'"):
        executable.run({"x": random(3, 7, 5)})
