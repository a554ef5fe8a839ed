"""Triangles, single places and rows of indices on accelerators: maps, and no host."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

TRN1 = load_target("trn1")


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-3, 0, 5])
def test_triangles(upper: int, k: int) -> None:
    t = f"t = Trilu<upper={upper}>(x, k)"
    text = f"g (float[3, 9, 7] x) => (float[3, 9, 7] y) {{ {t} y = Neg(t) }}"
    model, x = model_of(text, k=np.array(k)), random(3, 9, 7)
    x[0, 0, -1], x[1, -1, 0] = np.nan, np.inf
    executable = build(import_model(model), TRN1)
    assert not executable.report.host_nodes
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(model, {"x": x})["y"])


@pytest.mark.parametrize(("axis", "kind"), [(-1, "float"), (1, "float"), (0, "int")])
def test_indices_are_on_at_their_places(axis: int, kind: str) -> None:
    shape = [4, 3]
    shape.insert(axis % 3, 6)
    values = np.array([-2, 5], np.float32 if kind == "float" else np.int64)
    text = (
        f"g (int64[4, 3] i) => (float[{', '.join(map(str, shape))}] y) "
        f"{{ h = OneHot<axis={axis}>(i, d, v) c = Cast<to=1>(h) y = Neg(c) }}"
    )
    model = model_of(text, d=np.array(6), v=values)
    indices = np.array([[0, 5, 6], [-1, -6, -7], [1, 1 << 40, 2], [-(1 << 40), 3, 4]])
    executable = build(import_model(model), TRN1)
    assert not executable.report.host_nodes
    found = executable.run({"i": indices})["y"]
    np.testing.assert_array_equal(found, expected(model, {"i": indices})["y"])


@pytest.mark.parametrize(("depth", "host"), [(128, 0), (1000, 1)])
def test_places_that_bf16_does_not_tell_apart_stay_on_the_host(depth: int, host: int) -> None:
    text = f"g (int64[40] i) => (float[40, {depth}] y) {{ h = OneHot(i, d, v) y = Neg(h) }}"
    model = model_of(text, d=np.array(depth), v=np.array([0, 1], np.float32))
    indices = np.random.default_rng(0).integers(-depth - 9, depth + 9, 40)
    executable = build(import_model(model), TRN1, options=BuildOptions(precision="bf16"))
    assert len(executable.report.host_nodes) == host
    found = executable.run({"i": indices})["y"]
    np.testing.assert_array_equal(found, expected(model, {"i": indices})["y"])


@pytest.mark.parametrize("search", ["i = ArgMax<axis=1, keepdims=0>(a)", "v, i = TopK(a, k)"])
def test_what_a_search_finds_is_on_without_the_host(search: str) -> None:
    rank = "5, 40" if search.startswith("i") else "5, 2, 40"
    text = (
        f"g (float[5, 40] x) => (float[{rank}] y) "
        f"{{ a = Relu(x) {search} h = OneHot(i, d, w) c = Cast<to=1>(h) y = Neg(c) }}"
    )
    model = model_of(text, d=np.array(40), w=np.array([0, 1]), k=np.array([2]))
    executable = build(import_model(model), TRN1)
    assert not executable.report.host_nodes
    inputs = {"x": random(5, 40)}
    np.testing.assert_array_equal(executable.run(inputs)["y"], expected(model, inputs)["y"])


def test_boxes_of_the_best_of_a_single_row_are_gathered_as_rows() -> None:
    """As a detector picks its queries: indices repeated along the boxes' numbers."""
    text = (
        "g (float[1, 200, 8] s, float[1, 200, 4] b) => (float[1, 20, 4] y) { "
        "m = ReduceMax<axes=[2], keepdims=0>(s) v, i = TopK(m, k) u = Unsqueeze(i, two) "
        "e = Expand(u, shape) c = Sigmoid(b) p = GatherElements<axis=1>(c, e) y = Neg(p) }"
    )
    weights = {"k": np.array([20]), "two": np.array([2]), "shape": np.array([1, 20, 4])}
    model, inputs = model_of(text, **weights), {"s": random(1, 200, 8), "b": random(1, 200, 4)}
    executable = build(import_model(model), TRN1)
    assert not executable.report.host_nodes
    found, want = executable.run(inputs)["y"], expected(model, inputs)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5)
