"""Loop and Scan on the host, and what their bodies are made of, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilesmith as ts
from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError


def with_body(model: onnx.ModelProto, body: str) -> onnx.ModelProto:
    """The model with a body for its first node."""
    graph = onnx.parser.parse_graph(body)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("body", graph))
    return model


SUMS = """b (float[2] s, float[2] v) => (float[2] t, float[2] r) {
    t = Add(s, v) r = Mul(t, v) }"""


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("num_scan_inputs=1", (3, 2)),
        ("num_scan_inputs=1, scan_input_axes=[1]", (2, 3)),
        ("num_scan_inputs=1, scan_input_axes=[-1], scan_input_directions=[1]", (2, 3)),
        ("num_scan_inputs=1, scan_output_axes=[1], scan_output_directions=[1]", (3, 2)),
        ("num_scan_inputs=1, scan_output_axes=[-1]", (1, 2)),
    ],
)
def test_a_scan_goes_along_any_axis_in_either_direction(
    attributes: str, shape: tuple[int, ...]
) -> None:
    dims = ", ".join(map(str, shape))
    text = f"g (float[2] s, float[{dims}] x) => (float[2] y, float[A, B] r)"
    model = with_body(model_of(f"{text} {{ y, r = Scan<{attributes}>(s, x) }}"), SUMS)
    inputs = {"s": random(2), "x": random(*shape)}
    assert_close(run_reference(import_model(model), inputs), expected(model, inputs))


def test_a_scan_moves_the_axes_of_a_tensor_without_elements() -> None:
    """Which ends the process in onnxruntime."""
    text = "g (float[3, 2, 0] x) => (float[A, B, C] y)"
    scan = "y = Scan<num_scan_inputs=1, scan_input_axes=[1]>(x)"
    body = "b (float[3, 0] v) => (float[3, 0] r) { r = Relu(v) }"
    model = with_body(model_of(f"{text} {{ {scan} }}"), body)
    found = ts.compile(model).run({"x": np.zeros((3, 2, 0), np.float32)})
    assert found["y"].shape == (2, 3, 0)


def test_a_body_takes_logarithms_of_what_16_bits_round_to_nothing() -> None:
    text = "g (float16[2, 3] x) => (float16[A, B] y)"
    body = "b (float16[3] v) => (float16[3] r) { r = LogSoftmax(v) }"
    model = with_body(model_of(f"{text} {{ y = Scan<num_scan_inputs=1>(x) }}"), body)
    x = np.array([[60, 2, 0], [0, 1, -50]], np.float16)
    found = run_reference(import_model(model), {"x": x})
    np.testing.assert_allclose(found["y"], expected(model, {"x": x})["y"], atol=1e-3)


def test_a_body_has_operators_of_later_opsets_as_a_model_has() -> None:
    """LayerNormalization is of opset 17; onnxruntime's optimiser wrote it into models of 14."""
    body = """b (float[2] s, float[2] v) => (float[2] t, float[2] r) {
        t = Add(s, v) w = Constant<value = float[2] {1.0, 2.0}>()
        r = LayerNormalization(t, w) }"""
    text = "g (float[2] s, float[3, 2] x) => (float[2] y, float[A, B] r)"
    model = with_body(model_of(f"{text} {{ y, r = Scan<num_scan_inputs=1>(s, x) }}", 14), body)
    inputs = {"s": random(2), "x": random(3, 2)}
    assert_close(run_reference(import_model(model), inputs), expected(model, inputs))


def test_the_body_of_a_scan_reads_what_is_around_it() -> None:
    body = """b (float[2] s, float[2] v) => (float[2] t, float[2] r) {
        t = Add(s, v) r = Mul(t, outer) }"""
    text = "g (float[2] s, float[3, 2] x, float[2] outer) => (float[2] y, float[3, 2] r)"
    model = with_body(model_of(f"{text} {{ y, r = Scan<num_scan_inputs=1>(s, x) }}"), body)
    inputs = {"s": random(2), "x": random(3, 2), "outer": random(2)}
    assert_close(run_reference(import_model(model), inputs), expected(model, inputs))


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_of_opset_8_scans_each_element_of_a_batch(backwards: int) -> None:
    """onnxruntime no longer has it, so by hand: sums so far, zero behind the end."""
    text = "g (float[2, 2] s, float[2, 3, 2] x, int64[2] n) => (float[2, 2] y, float[2, 3, 2] r)"
    scan = f"y, r = Scan<num_scan_inputs=1, directions=[{backwards}]>(n, s, x)"
    body = "b (float[2] s, float[2] v) => (float[2] t, float[2] r) { t = Add(s, v) r = Neg(t) }"
    model = with_body(model_of(f"{text} {{ {scan} }}", 8), body)
    s, x = random(2, 2), random(2, 3, 2)
    found = run_reference(import_model(model), {"s": s, "x": x, "n": np.array([3, 2])})
    for entry, count in enumerate((3, 2)):
        steps = x[entry, :count][::-1] if backwards else x[entry, :count]
        sums = s[entry] + np.cumsum(steps, axis=0)
        np.testing.assert_allclose(found["y"][entry], sums[-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["r"][entry, :count], -sums, rtol=1e-5, atol=1e-6)
        assert not found["r"][entry, count:].any()


def test_scanned_inputs_of_different_lengths_are_refused() -> None:
    body = "b (float[2] s, float[2] v, float[2] w) => (float[2] t) { t = Sum(s, v, w) }"
    text = "g (float[2] s, float[N, 2] x, float[M, 2] z) => (float[2] y)"
    model = with_body(model_of(f"{text} {{ y = Scan<num_scan_inputs=2>(s, x, z) }}"), body)
    graph = import_model(model, {"x": (3, 2), "z": (4, 2)})
    with pytest.raises(JobError, match="not of one length, but of 3, 4"):
        run_reference(graph, {"s": random(2), "x": random(3, 2), "z": random(4, 2)})


def test_a_loop_of_no_iterations_gives_rows_of_the_declared_type() -> None:
    body = """b (int64 i, bool going, float[2] s) => (bool on, float[2] t, int64[3] r) {
        on = Identity(going) t = Identity(s) r = Constant<value_ints=[1, 2, 3]>() }"""
    text = "g (float[2] s, int64 n) => (float[2] y, int64[A, B] rows)"
    model = with_body(model_of(f"{text} {{ y, rows = Loop(n, , s) }}"), body)
    found = run_reference(import_model(model), {"s": random(2), "n": np.array(0)})
    assert (found["rows"].shape, found["rows"].dtype) == ((0, 3), np.int64)


def test_bodies_compute_with_the_hosts_own_operators() -> None:
    """onnx.reference's transposed convolution fails with groups."""
    body = """b (int64 i, bool going, float[1, 4, 5, 5] s) => (bool on, float[1, 4, 5, 5] t) {
        on = Identity(going) t = ConvTranspose<group=2, pads=[1, 1, 1, 1]>(s, w) }"""
    text = "g (float[1, 4, 5, 5] x, float[4, 2, 3, 3] w, int64 n) => (float[1, 4, 5, 5] y)"
    model = with_body(model_of(f"{text} {{ y = Loop(n, , x) }}"), body)
    inputs = {"x": random(1, 4, 5, 5), "w": random(4, 2, 3, 3), "n": np.array(2)}
    assert_close(run_reference(import_model(model), inputs), expected(model, inputs))


def test_operators_that_are_a_function_of_their_types_run_on_the_host() -> None:
    """GroupNormalization in half precision, whose body ONNX makes for the types it is given."""
    half = "float16[1, 4, 3, 3] x, float16[4] s, float16[4] b"
    model = model_of(
        f"g ({half}) => (float16[A, B, C, D] y) {{y = GroupNormalization<num_groups=2>(x, s, b) }}",
        21,
    )
    inputs = {
        "x": random(1, 4, 3, 3).astype(np.float16),
        "s": random(4).astype(np.float16),
        "b": random(4).astype(np.float16),
    }
    x = inputs["x"].astype(np.float64).reshape(1, 2, -1)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    scale, shift = inputs["s"].reshape(1, 4, 1, 1), inputs["b"].reshape(1, 4, 1, 1)
    (found,) = run_reference(import_model(model), inputs).values()
    np.testing.assert_allclose(found, normal.reshape(1, 4, 3, 3) * scale + shift, 1e-2, 1e-2)
    assert found.dtype == np.float16
