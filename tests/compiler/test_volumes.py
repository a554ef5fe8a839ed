"""Convolution and pooling over three spatial axes: native, and equal to onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.lowering_checks import check_both, model_without_output_shape, whole
from tests.compiler.model_builder import assert_close, expected, model_of, operators, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model


def check_native(text: str, opset: int = 17, **weights: object) -> Graph:
    """No host node, with the output's shape left to inference."""
    model = model_without_output_shape(model_of(text, opset, **weights))
    lowered: Graph = check_both(onnx.shape_inference.infer_shapes(model))
    return lowered


X = "g (float[2, 4, 5, 6, 7] x) => (float y) "

CONVOLUTIONS = {
    "deep": ((3, 3, 2), 1, "pads=[1, 1, 0, 1, 1, 1]"),
    "with steps": ((3, 3, 3), 1, "strides=[2, 2, 1], pads=[1, 0, 1, 0, 1, 1]"),
    "dilated": ((2, 2, 3), 1, "dilations=[3, 2, 1]"),
    "in groups": ((2, 3, 3), 2, "pads=[1, 1, 1, 0, 1, 1], strides=[1, 2, 2]"),
    "depthwise": ((3, 3, 3), 4, "pads=[1, 1, 1, 1, 1, 1], strides=[2, 1, 1]"),
    "of frames": ((1, 3, 3), 1, "pads=[0, 1, 1, 0, 1, 1]"),
    "of columns": ((3, 1, 1), 2, "pads=[1, 0, 0, 0, 0, 0], strides=[2, 1, 1]"),
    "pointwise": ((1, 1, 1), 1, ""),
    "whole": ((5, 3, 3), 2, ""),
    "padded by itself": ((3, 2, 3), 1, 'auto_pad="SAME_LOWER", strides=[2, 2, 2]'),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    kernel, groups, attributes = CONVOLUTIONS[name]
    stated = f"group={groups}" + (f", {attributes}" if attributes else "")
    check_native(
        X + f"{{ c = Conv<{stated}>(x, w, b) y = Relu(c) }}",
        w=random(4, 4 // groups, *kernel), b=random(4),
    )  # fmt: skip


@pytest.mark.parametrize(
    "attributes",
    ["strides=[2, 1, 2]", "pads=[1, 0, 1, 1, 1, 0]", "strides=[1, 2, 1], output_padding=[0, 1, 0]"],
)
def test_transposed_convolutions(attributes: str) -> None:
    check_native(
        "g (float[1, 4, 3, 4, 5] x) => (float y) "
        f"{{ y = ConvTranspose<group=2, {attributes}>(x, w, b) }}",
        w=random(4, 3, 2, 3, 2), b=random(6),
    )  # fmt: skip


def test_residual_blocks_stay_lists_of_frames() -> None:
    """Scales, shifts, activations and sums join the convolutions; one transposition at each end."""
    body = (
        "c = Conv<pads=[1, 1, 1, 1, 1, 1]>(x, w) n = BatchNormalization(c, s, b, m, v) r = Relu(n) "
        "d = Conv<pads=[1, 1, 1, 1, 1, 1]>(r, w) e = BatchNormalization(d, s, b, m, v) "
        "f = Add(e, r) y = Relu(f)"
    )
    numbers = {name: random(4, seed=i) for i, name in enumerate("sbm")}
    lowered = check_native(
        X + f"{{ {body} }}", w=random(4, 4, 3, 3, 3), v=np.abs(random(4)), **numbers
    )
    found = operators(lowered)
    assert sum(count for key, count in found.items() if key.startswith("transpose")) == 2
    assert not any(key.startswith("elementwise") for key in found), found
    assert any(key.endswith("epilogue=bias,residual,relu") for key in found), found


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_pools(operator: str, data: st.DataObject) -> None:
    axis = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
    kernel, strides, before, after = zip(*(data.draw(axis) for _ in range(3)), strict=True)
    pads = [min(p, k - 1) for side in (before, after) for p, k in zip(side, kernel, strict=True)]
    stated = f"kernel_shape={list(kernel)}, strides={list(strides)}, pads={pads}"
    stated += f", ceil_mode={data.draw(st.integers(0, 1))}"
    if operator == "AveragePool":
        stated += f", count_include_pad={data.draw(st.integers(0, 1))}"
    check_native(X.replace("4,", "2,") + f"{{ y = {operator}<{stated}>(x) }}")


def test_pools_with_dilations() -> None:
    check_native(X + "{ y = MaxPool<kernel_shape=[2, 2, 3], dilations=[2, 3, 2]>(x) }")


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(operator: str) -> None:
    check_native(X + f"{{ y = {operator}(x) }}")


def test_a_depthwise_bias_that_is_computed() -> None:
    """The bias is not constant: the other form, which takes one as it comes."""
    model = model_of(
        "g (float[1, 4, 3, 4, 4] x, float[4] b) => (float[A, B, C, D, E] y) "
        "{ y = Conv<group=4>(x, w, b) }",
        w=random(4, 1, 2, 2, 2),
    )  # fmt: skip
    graph = import_model(model)
    inputs = {"x": random(1, 4, 3, 4, 4), "b": random(4)}
    assert_close(run_reference(whole(graph), inputs), run_reference(graph, inputs))


def test_what_follows_and_gives_another_type_keeps_it() -> None:
    """Bytes and truths of a volume move in front of its transposition as what they are."""
    model = model_of(
        """g (float[1,2,4,4,4] x) => (uint8[1,3,2,2,2] q, bool[1,3,2,2,2] b) {
            t = Conv <strides = [2,2,2], pads = [0,0,0,1,1,1]> (x, w)
            q = QuantizeLinear (t, scale, zero)
            b = Greater (t, half)
        }""",
        w=random(3, 2, 2, 2, 2), scale=np.float32(0.3), zero=np.uint8(100), half=np.float32(0.5),
    )  # fmt: skip
    x = {"x": random(1, 2, 4, 4, 4, seed=1)}
    wanted = expected(model, x)
    for graph in (model, one_output(model, 0), one_output(model, 1)):
        for name, value in build(import_model(graph), host_target()).run(x).items():
            assert value.dtype == wanted[name].dtype
            np.testing.assert_array_equal(value, wanted[name])


def one_output(model: onnx.ModelProto, place: int) -> onnx.ModelProto:
    """The model with one of its outputs, and what that needs."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    kept = cut.graph.output[place]
    nodes = [n for n in cut.graph.node if n.op_type == "Conv" or kept.name in n.output]
    del cut.graph.node[:]
    cut.graph.node.extend(nodes)
    del cut.graph.output[1 - place]
    return cut
