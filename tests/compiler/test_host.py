"""Host nodes: operators of our own against onnxruntime, errors that name the node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, check, expected, model_of, random
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.errors import JobError

KERNEL = "kernel_shape=[3, 2]"


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", strides=[2, 3], pads=[1, 0, 0, 1]",
        ", strides=[2, 2], output_padding=[1, 0], dilations=[2, 1]",
        ', strides=[2, 2], auto_pad="SAME_UPPER"',
        ', strides=[2, 2], auto_pad="SAME_LOWER"',
        ", strides=[3, 2], output_shape=[13, 11]",
    ],
)
def test_transposed_convolution(attributes: str, group: int) -> None:
    model = model_of(
        "g (float[2, 4, 5, 6] x) => (float[A, B, C, D] y) "
        f"{{ y = ConvTranspose<{KERNEL}, group={group}{attributes}>(x, w, b) }}",
        w=random(4, 3, 3, 2), b=random(3 * group),
    )  # fmt: skip
    check(model)


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", strides=[2, 1], pads=[1, 1, 1, 0]",
        ", strides=[2, 2], ceil_mode=1, dilations=[1, 2]",
        ', auto_pad="SAME_UPPER"',
        ", storage_order=1",
    ],
)
def test_pooling_with_indices(attributes: str) -> None:
    check(
        model_of(
            "g (float[2, 3, 7, 6] x) => (float[A, B, C, D] y, int64[A, B, C, D] i) "
            f"{{ y, i = MaxPool<{KERNEL}{attributes}>(x) }}"
        )
    )


LOOP = """g (float[2, 3] x, int64 n) => (float[2, 3] y, float[A, B, C] rows, float[D] sums) {
    y, rows, sums = Loop(n, , x) }"""

BODY = """b (int64 i, bool going, float[2, 3] s)
    => (bool on, float[2, 3] t, float[2, 3] r, float u) {
    on = Identity(going) t = Add(s, x) r = Mul(s, s) u = ReduceSum<keepdims=0>(r) }"""


def test_a_loop_stacks_what_its_body_gives() -> None:
    """Rows of any rank; a condition left out; a state that the outer graph names too."""
    model = model_of(LOOP)
    body = onnx.helper.make_attribute("body", onnx.parser.parse_graph(BODY))
    model.graph.node[0].attribute.append(body)
    inputs = {"x": random(2, 3), "n": np.array(4)}
    found = run_reference(import_model(model), inputs)
    assert found["rows"].shape == (4, 2, 3)
    assert_close(found, expected(model, inputs))


def test_a_loop_of_no_iterations_passes_its_states_on() -> None:
    model = model_of(LOOP)
    body = onnx.helper.make_attribute("body", onnx.parser.parse_graph(BODY))
    model.graph.node[0].attribute.append(body)
    x = random(2, 3)
    found = run_reference(import_model(model), {"x": x, "n": np.array(0)})
    np.testing.assert_array_equal(found["y"], x)
    assert len(found["rows"]) == 0


def test_a_node_that_fails_is_named() -> None:
    model = model_of("g (float[2, 3] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }")
    graph = import_model(model)
    function = HostFunction.of(graph.nodes[0], graph.opsets)
    with pytest.raises(JobError, match=r"Reshape 'y' failed on the host \(onnx.reference\)"):
        function.run({"x": np.zeros((2, 3), np.float32), "s": np.array([7, 7])})
