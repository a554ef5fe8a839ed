"""Host nodes: operators of our own against onnxruntime, errors that name the node."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, check, expected, inputs_of, model_of, random
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", strides=[2, 3], pads=[1, 0, 0, 1]",
        ", dilations=[2, 1], pads=[0, 2, 1, 0]",
        ', strides=[2, 2], auto_pad="SAME_UPPER"',
        ', strides=[1, 2], auto_pad="SAME_LOWER"',
        ', auto_pad="VALID"',
    ],
)
def test_convolution(attributes: str, group: int) -> None:
    model = model_of(
        "g (double[2, 4, 5, 6] x) => (double[A, B, C, D] y) "
        f"{{ y = Conv<{KERNEL}, group={group}{attributes}>(x, w, b) }}",
        w=random(6, 4 // group, 3, 2).astype(np.float64), b=random(6).astype(np.float64),
    )  # fmt: skip
    narrow = model_of(
        "g (float[2, 4, 5, 6] x) => (float[A, B, C, D] y) "
        f"{{ y = Conv<{KERNEL}, group={group}{attributes}>(x, w, b) }}",
        w=random(6, 4 // group, 3, 2), b=random(6),
    )  # fmt: skip
    x = random(2, 4, 5, 6)
    found = run_reference(import_model(model), {"x": x.astype(np.float64)})
    wanted = expected(narrow, {"x": x})["y"].astype(np.float64)
    assert_close(found, {"y": wanted})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("transform", [lambda graph: graph, prepared])
def test_automatic_padding_counts_dilations(mode: str, transform: Any) -> None:
    """ONNX: as much padding as gives ceil(extent / stride) windows; onnxruntime refuses these."""
    x, w = random(1, 2, 7, 7), random(3, 2, 3, 2)
    text = "g (float[1, 2, 7, 7] x) => (float[A, B, C, D] y) { y = Conv<dilations=[2, 3], "
    graph = import_model(model_of(text + f'strides=[1, 2], auto_pad="{mode}">(x, w) }}', w=w))
    pads = [2, 1, 2, 2] if mode == "SAME_UPPER" else [2, 2, 2, 1]
    explicit = model_of(text + f"strides=[1, 2], pads={pads}>(x, w) }}", w=w)
    assert_close(run_reference(transform(graph), {"x": x}), expected(explicit, {"x": x}))


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


@pytest.mark.parametrize("opset", [9, 13, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_normalisation_with_one_output_is_inference(opset: int, dtype: Any) -> None:
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    parameters = [np.abs(random(3, seed=i)).astype(dtype) for i in range(4)]
    model = model_of(
        f"g ({kind}[2, 3, 4] x) => ({kind}[2, 3, 4] y) "
        "{ y = BatchNormalization<epsilon=0.01>(x, s, b, m, v) }",
        opset, **dict(zip("sbmv", parameters, strict=True)),
    )  # fmt: skip
    check(model)


def test_batch_normalisation_in_half_precision_uses_the_statistics_given() -> None:
    s, b, m, v = (np.abs(random(3, seed=i)).astype(np.float16) for i in range(4))
    x = random(2, 3, 4).astype(np.float16)
    text = "g (float16[2, 3, 4] x) => (float16[2, 3, 4] y) { y = BatchNormalization(x, s, b, m, v)}"
    found = run_reference(import_model(model_of(text, 11, s=s, b=b, m=m, v=v)), {"x": x})["y"]
    wide = [p.astype(np.float64)[:, None] for p in (s, b, m, v)]
    wanted = (x - wide[2]) / np.sqrt(wide[3] + 1e-5) * wide[0] + wide[1]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, 2e-3, 2e-3)


def test_batch_normalisation_with_five_outputs_trains() -> None:
    """ONNX BatchNormalization-9: statistics of the batch, and a moving average of them."""
    x, (s, b, m, v) = random(4, 3, 5), (np.abs(random(3, seed=i)) for i in range(4))
    model = model_of(
        "g (float[4, 3, 5] x) => (float[4, 3, 5] y, float[3] rm, float[3] rv) "
        "{ y, rm, rv, om, ov = BatchNormalization<momentum=0.8>(x, s, b, m, v) }",
        9, s=s, b=b, m=m, v=v,
    )  # fmt: skip
    found = run_reference(import_model(model), {"x": x})
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    np.testing.assert_allclose(found["rm"], 0.8 * m + 0.2 * mean, 1e-5)
    np.testing.assert_allclose(found["rv"], 0.8 * v + 0.2 * variance, 1e-5)
    normal = (x - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    np.testing.assert_allclose(found["y"], normal * s[:, None] + b[:, None], 1e-4, 1e-5)


@pytest.mark.parametrize("opset", [7, 12, 13])
@pytest.mark.parametrize("axis", ["", "<axis=0>", "<axis=1>", "<axis=2>"])
def test_hardmax_flattens_before_opset_13(opset: int, axis: str) -> None:
    text = f"g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = Hardmax{axis}(x) }}"
    check(model_of(text, opset))


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 4, 5)])
@pytest.mark.parametrize("kind", ["float16", "float", "double"])
def test_an_affine_grid_keeps_its_dtype(kind: str, size: tuple[int, ...], corners: int) -> None:
    rank = len(size) - 2
    model = model_of(
        f"g ({kind}[2, {rank}, {rank + 1}] x) => ({kind}[{', '.join('ABCDE'[: rank + 2])}] y) "
        f"{{ y = AffineGrid<align_corners={corners}>(x, size) }}",
        20, size=np.array(size),
    )  # fmt: skip
    inputs = inputs_of(import_model(model))
    wide = model_of(
        f"g (float[2, {rank}, {rank + 1}] x) => (float[{', '.join('ABCDE'[: rank + 2])}] y) "
        f"{{ y = AffineGrid<align_corners={corners}>(x, size) }}",
        20, size=np.array(size),
    )  # fmt: skip
    wanted = expected(wide, {"x": inputs["x"].astype(np.float32)})["y"].astype(inputs["x"].dtype)
    found = run_reference(import_model(model), inputs)
    assert_close(found, {"y": wanted}, 2e-3 if kind == "float16" else 2e-5)


@pytest.mark.parametrize("operator", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        "ceil_mode=1, strides=[2, 2, 2]",
        "ceil_mode=1, strides=[1, 2, 3], pads=[0, 1, 1, 1, 0, 1]",
        "ceil_mode=1, strides=[3, 3, 3], pads=[1, 1, 1, 1, 1, 1], dilations=[1, 2, 1]",
        'strides=[2, 1, 2], auto_pad="SAME_LOWER"',
    ],
)
@pytest.mark.parametrize("counted", ["", ", count_include_pad=1"])
def test_pooling_of_volumes(operator: str, attributes: str, counted: str) -> None:
    if counted and operator != "AveragePool":
        return
    check(
        model_of(
            "g (float[2, 2, 5, 6, 7] x) => (float[A, B, C, D, E] y) "
            f"{{ y = {operator}<kernel_shape=[2, 3, 2], {attributes}{counted}>(x) }}",
            20,
        )
    )


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "pads"),
    [(2, 1, 2, (0, 0)), (4, 2, 3, (1, 1)), (5, 2, 4, (0, 1))],
)
def test_no_window_starts_behind_the_input(
    operator: str, opset: int, extent: int, kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    """With `ceil_mode`; what ONNX infers before opset 22 is one too large."""
    for rank in (1, 2, 3):
        result = ", ".join("ABCDE"[: rank + 2])
        model = model_of(
            f"g (float[1, 2{f', {extent}' * rank}] x) => (float[{result}] y) {{ y = {operator}"
            f"<ceil_mode=1, kernel_shape={[kernel] * rank}, "
            f"strides={[stride] * rank}, pads={[pads[0]] * rank + [pads[1]] * rank}>(x) }}",
            opset,
        )
        check(model)
        graph = import_model(model)
        inputs = inputs_of(graph)
        assert_close(run_reference(prepared(graph), inputs), expected(model, inputs))


@pytest.mark.parametrize("shape", [(2, 5, 4), (1, 7, 2, 3), (9, 3, 2, 2, 2)])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_local_response_normalisation_is_over_channels(shape: tuple[int, ...], size: int) -> None:
    """onnx.reference goes over as many channels as the batch has images."""
    dims = ", ".join(map(str, shape))
    model = model_of(
        f"g (double[{dims}] x) => (double[{dims}] y) "
        f"{{ y = LRN<size={size}, alpha=0.5, beta=0.6, bias=2.0>(x) }}"
    )
    x = random(*shape).astype(np.float64)
    wanted = np.zeros_like(x)
    for c in range(shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(shape[1] - 1, c + size // 2)
        squares = (x[:, first : last + 1] ** 2).sum(axis=1)
        wanted[:, c] = x[:, c] / (2.0 + 0.5 / size * squares) ** 0.6
    found = run_reference(import_model(model), {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, 1e-6)


@pytest.mark.parametrize("shape", [(60, 3, 4), (60, 2, 4), (5, 3, 1)])
def test_elements_are_gathered_along_long_axes(shape: tuple[int, ...]) -> None:
    """numpy.choose, in onnx.reference, takes 32 entries at most."""
    indices = np.random.default_rng(0).integers(-50, 50, shape)
    model = model_of(
        "g (float[50, 3, 4] x) => (float[A, B, C] y) { y = GatherElements<axis=0>(x, i) }",
        i=indices,
    )
    check(model)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("opset", [13, 19])
def test_negative_pads_cut_off(mode: str, opset: int) -> None:
    if mode == "wrap" and opset < 19:
        return
    x = random(4, 5, 6)
    for pads in ([0, -1, 2, 0, 3, -2], [-1, 1, -2, 0, -1, 1], [0] * 6):
        model = model_of(
            f'g (float[4, 5, 6] x) => (float[A, B, C] y) {{ y = Pad<mode="{mode}">(x, pads) }}',
            opset, pads=np.array(pads),
        )  # fmt: skip
        assert_close(run_reference(import_model(model), {"x": x}), expected(model, {"x": x}))


@pytest.mark.parametrize("index", [3, -4])
def test_gathering_elements_beyond_the_axis_is_an_error(index: int) -> None:
    model = model_of(
        "g (float[3, 2] x, int64[1, 2] i) => (float[1, 2] y) { y = GatherElements(x, i) }"
    )
    inputs = {"x": random(3, 2), "i": np.array([[0, index]])}
    with pytest.raises(JobError, match=rf"'y' failed .* index {index} of an axis with 3 entries"):
        run_reference(import_model(model), inputs)


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


@pytest.mark.parametrize("operator", ["Scatter", "ScatterElements"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_scattered(operator: str, axis: int) -> None:
    """Fewer than the data has, negative indices among them."""
    extent = (5, 4, 3)[axis]
    indices = np.random.default_rng(0).permuted(
        np.arange(extent) - 2 + np.zeros((2, 2, extent), int), axis=-1
    )[..., :2]
    model = model_of(
        "g (float[5, 4, 3] x, float[2, 2, 2] u) => (float[5, 4, 3] y) "
        f"{{ y = {operator}<axis={axis}>(x, i, u) }}",
        10 if operator == "Scatter" else 17, i=np.moveaxis(indices, -1, axis),
    )  # fmt: skip
    check(model)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_scattered_elements_are_combined(reduction: str) -> None:
    model = model_of(
        "g (float[5, 3] x, float[7, 2] u) => (float[5, 3] y) "
        f'{{ y = ScatterElements<reduction="{reduction}">(x, i, u) }}',
        18, i=np.random.default_rng(0).integers(-5, 5, (7, 2)),
    )  # fmt: skip
    check(model)


def test_scattering_beyond_the_axis_is_an_error() -> None:
    model = model_of(
        "g (float[3] x, float[1] u) => (float[3] y) { y = ScatterElements(x, i, u) }",
        i=np.array([3]),
    )
    with pytest.raises(JobError, match="index 3 of an axis with 3 entries"):
        run_reference(import_model(model), {"x": random(3), "u": random(1)})


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [np.array(4), np.array([4])])
def test_one_hot_takes_a_depth_of_one_element(depth: Any, axis: int) -> None:
    model = model_of(
        f"g (int64[2, 3] x) => (float[A, B, C] y) {{ y = OneHot<axis={axis}>(x, depth, values) }}",
        depth=depth, values=np.array([2.5, -1], np.float32),
    )  # fmt: skip
    inputs = {"x": np.array([[0, 3, -1], [4, -5, 1]])}
    assert_close(run_reference(import_model(model), inputs), expected(model, inputs))


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("opset", [18, 20, 21, 22])
@pytest.mark.parametrize("shape", [(2, 6, 5), (1, 6, 3, 4)])
def test_group_normalisation_of_every_opset(shape: tuple[int, ...], opset: int, kind: str) -> None:
    """Scale and bias are one a group before opset 21, one a channel from then on."""
    x = random(*shape).astype({"float": np.float32, "double": np.float64}[kind])
    size = 3 if opset < 21 else 6
    scale, bias = random(size).astype(x.dtype), random(size, seed=1).astype(x.dtype)
    dims = ", ".join(map(str, shape))
    model = model_of(
        f"g ({kind}[{dims}] x) => ({kind}[{dims}] y) "
        "{ y = GroupNormalization<num_groups=3, epsilon=0.01>(x, s, b) }",
        opset, s=scale, b=bias,
    )  # fmt: skip
    groups = x.reshape(shape[0], 3, -1).astype(np.float64)
    mean, variance = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    normal = ((groups - mean) / np.sqrt(variance + 0.01)).reshape(shape)
    wide = [np.repeat(p, 6 // size).reshape(-1, *[1] * (len(shape) - 2)) for p in (scale, bias)]
    graph = import_model(model)
    lowered = prepared(graph)
    assert (kind == "float") == any(node.kind == "kernel" for node in lowered.nodes)
    for stage in (graph, lowered):
        found = run_reference(stage, {"x": x})["y"]
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found, normal * wide[0] + wide[1], 1e-4, 1e-5)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_negative_powers_of_whole_numbers_are_cut(kind: Any) -> None:
    """As onnxruntime's; where that casts infinity, 0 becomes the largest number."""
    name = np.dtype(kind).name
    text = f"g ({name}[8] x, {name}[8] p) => ({name}[8] y) {{ y = Pow(x, p) }}"
    x = np.array([-7, -1, -1, 1, 3, 2, -3, 0], kind)
    p = np.array([-1, -3, -2, -5, -2, 5, 3, 0], kind)
    given = {"x": x, "p": p}
    graph = import_model(model_of(text))
    np.testing.assert_array_equal(
        run_reference(graph, given)["y"], expected(model_of(text), given)["y"]
    )
    of_zero = run_reference(graph, {"x": 0 * x, "p": np.full_like(p, -1)})["y"]
    np.testing.assert_array_equal(of_zero, np.iinfo(kind).max)


@pytest.mark.parametrize("operator", ["Erf", "Gelu"])
def test_erf_of_float64_has_its_digits(operator: str) -> None:
    """Inside of the function that ONNX defines Gelu by, too."""
    graph = import_model(
        model_of(f"g (double[3] x) => (double[3] y) {{ y = {operator}(x) }}", opset=20)
    )
    x = np.array([-3.0, 0.3, 1.7])
    wanted = {
        "Erf": np.vectorize(math.erf)(x),
        "Gelu": x / 2 * np.vectorize(math.erfc)(-x / math.sqrt(2)),
    }
    np.testing.assert_allclose(run_reference(graph, {"x": x})["y"], wanted[operator], rtol=1e-12)
