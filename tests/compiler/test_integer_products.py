"""Products of quantised tensors as kernels of whole numbers, against numpy and onnxruntime."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.model_builder import expected, model_of, random
from tests.compiler.quantised_models import (
    LAST_SCALE,
    RESIDUAL_SCALE,
    Layer,
    assert_bytes,
    requantised,
)
from tilesmith.codegen.host.machine import host_target
from tilesmith.command_line import command_line
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.driver.verifier import Verifier
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.integer_products import noting_unfolded
from tilesmith.compiler.rewriting.graph_pass import observed

IMAGE = Layer("Conv", (1, 4, 7, 6), (6, 4, 3, 3))
ROWS = Layer("MatMul", (3, 20), (20, 5), bias="float32")
DENSE = Layer("Gemm", (3, 20), (5, 20), attributes=(("transB", 1),))
FRAME = (("pads", [1, 0, 2, 1]), ("strides", [2, 1]))


def lowered(model: onnx.ModelProto) -> tuple[Graph, dict[str, str]]:
    """A model as kernels, every pass verified, and what did not fold."""
    reasons: dict[str, str] = {}

    with observed(Verifier(), noting_unfolded(reasons)):
        return scheduled(import_model(model), host_target()), reasons


def keys(graph: Graph) -> list[str]:
    return [node.workload.key for node in graph.nodes if node.workload is not None]


def products(graph: Graph) -> list[str]:
    """Keys of the kernels that sum products of bytes; others there are none of."""
    found = [
        key for key in keys(graph) if key.split()[0] in ("matmul", "conv2d", "depthwise_conv2d")
    ]
    assert all("weights=int8" in key for key in found), found
    return found


def check_layer(layer: Layer, native: bool = False) -> list[str]:
    """One layer: every product folds, and the bytes are right; the kernels' keys."""
    model, inputs = layer.model(), layer.inputs()
    graph, reasons = lowered(model)
    assert not reasons and all(node.kind != "host" for node in graph.nodes)
    found = build(import_model(model), host_target()).run(inputs) if native else None
    result = (found or run_reference(graph, inputs))["y"]
    numbers = layer.numbers_of(inputs)
    if layer.numbers:
        np.testing.assert_allclose(result, numbers, rtol=1e-5, atol=1e-5 * np.abs(numbers).max())
    else:
        assert_bytes(layer, result, numbers)
        theirs = expected(model, inputs)["y"]
        assert np.abs(result.astype(int) - theirs.astype(int)).max() <= 1
    assert len(products(graph)) == 1
    return keys(graph)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("layer", [IMAGE, ROWS, DENSE], ids=lambda layer: layer.operator)
def test_a_layer_is_one_kernel(layer: Layer, signed: bool) -> None:
    found = check_layer(replace(layer, signed=signed, residual=True, relu=True), native=True)
    last = "int8" if signed else "uint8"
    assert f"epilogue=correction,rescale,residual_uint8,relu,quantise_{last}" in " ".join(found)


LAYERS = st.builds(
    replace,
    st.sampled_from([IMAGE, ROWS, DENSE]),
    signed=st.booleans(),
    unsigned_weights=st.booleans(),
    per_channel=st.booleans(),
    zeros=st.tuples(*[st.integers(0, 255)] * 3),
    relu=st.booleans(),
    residual=st.booleans(),
    bias=st.sampled_from(["", "int32", "float32"]),
    numbers=st.booleans(),
    seed=st.integers(0, 9),
)


@given(LAYERS)
@settings(max_examples=60, deadline=None)
def test_layers_of_every_kind(layer: Layer) -> None:
    check_layer(layer)


@given(
    st.integers(1, 3), st.integers(1, 3), st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(*[st.integers(1, 2)] * 2), st.sampled_from([1, 2, 4]), st.integers(0, 255),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_windows_of_every_kind(
    height: int, width: int, pads: tuple[int, ...], strides: tuple[int, ...], group: int, zero: int
) -> None:
    attributes = (("pads", list(pads)), ("strides", list(strides)), ("group", group))
    weights = (4 * group if group < 4 else 4, 4 // group, height, width)
    check_layer(replace(IMAGE, weights=weights, attributes=attributes, zeros=(zero, 100, 0)))


def test_axes_before_there_were_axes() -> None:
    """onnxruntime's quantiser writes scales along an axis into models of opset 11."""
    layer = replace(IMAGE, seed=3)
    model, inputs = layer.model(opset=11), layer.inputs()
    graph, reasons = lowered(model)
    assert not reasons and len(products(graph)) == 1
    assert_bytes(layer, run_reference(graph, inputs)["y"], layer.numbers_of(inputs))


def test_frames_hold_what_stands_for_zero() -> None:
    check_layer(replace(IMAGE, attributes=FRAME), native=True)
    check_layer(replace(IMAGE, attributes=FRAME, signed=True, spelling="qlinear"), native=True)


@pytest.mark.parametrize("layer", [IMAGE, replace(ROWS, bias="")], ids=lambda x: x.operator)
def test_both_spellings_are_one(layer: Layer) -> None:
    by_operator = check_layer(replace(layer, spelling="qlinear"), native=True)
    assert by_operator == check_layer(layer)


def test_bounds_that_bytes_keep_anyhow_cost_nothing() -> None:
    plain, bounded = replace(IMAGE, zeros=(3, 0, 7)), replace(IMAGE, zeros=(3, 0, 7), relu=True)
    assert check_layer(plain) == check_layer(bounded)
    clipped = check_layer(replace(IMAGE, zeros=(3, 100, 7), relu=True))
    assert "relu,quantise_uint8" in clipped[0]


DYNAMIC = (
    "g (float[3, 20] x) => (float[3, 5] y) {"
    "q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, z, wz) f = Cast<to = 1>(i)"
    "t = Mul(s, ws) n = Mul(f, t) b = Add(n, bias) y = Relu(b) }"
)


@pytest.mark.parametrize("count", [1, 5])
def test_scales_of_the_run_are_operands(count: int) -> None:
    """What quantize_dynamic writes, with one scale of weights or one a channel."""
    w = np.random.default_rng(0).integers(-127, 128, (20, 5), dtype=np.int8)
    scales = np.abs(random(count)) / 50 if count > 1 else np.array([0.013], np.float32)
    wz = np.zeros(count if count > 1 else (), np.int8)
    model = model_of(DYNAMIC, w=w, ws=scales.astype(np.float32), wz=wz, bias=random(5))
    graph, reasons = lowered(model)
    assert not reasons and products(graph) == [
        "matmul m=3 n=5 k=20 weights=int8 dtype=uint8 const=b epilogue=correction,rescale,bias,relu"
    ]
    x = {"x": random(3, 20)}
    found = build(import_model(model), host_target()).run(x)["y"]
    np.testing.assert_allclose(found, expected(model, x)["y"], rtol=1e-5, atol=1e-5)


def test_sums_alone_are_a_kernel_with_a_correction() -> None:
    weights = np.random.default_rng(0).integers(0, 256, (6, 4, 3, 3), dtype=np.uint8)
    model = model_of(
        "g (uint8[1, 4, 7, 7] x) => (int32[1, 6, 4, 4] y) {"
        "y = ConvInteger<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, z, wz) }",
        w=weights, z=np.uint8(9), wz=np.uint8(128),
    )  # fmt: skip
    graph, reasons = lowered(model)
    assert not reasons and "epilogue=correction" in products(graph)[0]
    x = {"x": np.random.default_rng(1).integers(0, 256, (1, 4, 7, 7), dtype=np.uint8)}
    found = build(import_model(model), host_target()).run(x)["y"]
    np.testing.assert_array_equal(found, expected(model, x)["y"])


def test_activations_between_a_product_and_its_bytes_are_its_epilogue() -> None:
    """GELU as exporters write it, behind a product whose bias is an Add of float32."""
    model = model_of(
        "g (float[3, 20] x) => (float[3, 5] y) {"
        "q = QuantizeLinear(x, s, z) n = DequantizeLinear(q, s, z) w = DequantizeLinear(c, ws)"
        "p = MatMul(n, w) a = Add(bias, p) d = Div(a, root) e = Erf(d) f = Add(e, one)"
        "g = Mul(a, f) h = Mul(g, half) k = QuantizeLinear(h, ys, yz)"
        "y = DequantizeLinear(k, ys, yz) }",
        s=np.float32(0.03), z=np.uint8(120), ws=np.float32(0.01), bias=random(5),
        c=np.random.default_rng(0).integers(-127, 128, (20, 5), dtype=np.int8),
        root=np.float32(np.sqrt(2)), one=np.float32(1), half=np.float32(0.5),
        ys=np.float32(0.05), yz=np.uint8(9),
    )  # fmt: skip
    graph, reasons = lowered(model)
    (key,) = products(graph)
    assert not reasons and key.endswith("epilogue=correction,rescale,bias,gelu,quantise_uint8")
    x = {"x": random(3, 20)}
    found = build(import_model(model), host_target()).run(x)["y"]
    assert np.abs(found - expected(model, x)["y"]).max() <= 0.0501


def test_bytes_are_moved_as_bytes_and_pooled_between_products() -> None:
    rng = np.random.default_rng(0)
    weights = [
        rng.integers(-127, 128, shape, dtype=np.int8) for shape in ((8, 4, 1, 1), (6, 16, 1, 1))
    ]
    text = "g (float[1, 4, 8, 8] x) => (float[1, 6, 4, 4] y) {"
    text += "q = QuantizeLinear(x, s, z) n = DequantizeLinear(q, s, z) v = DequantizeLinear(v0, t)"
    text += (
        "c = Conv(n, v) r = Relu(c) cq = QuantizeLinear(r, s, z) cn = DequantizeLinear(cq, s, z)"
    )
    text += "m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(cn) mq = QuantizeLinear(m, s, z)"
    text += "mn = DequantizeLinear(mq, s, z) j = Concat<axis = 1>(mn, mn)"
    text += "jq = QuantizeLinear(j, s, z) jn = DequantizeLinear(jq, s, z)"
    text += "w = DequantizeLinear(w0, t) d = Conv(jn, w) y = Identity(d) }"
    names = {"s": np.float32(0.05), "z": np.uint8(0), "t": np.float32(0.02)}
    model = model_of(text, v0=weights[0], w0=weights[1], **names)
    graph, reasons = lowered(model)
    assert not reasons and len(products(graph)) == 2
    assert not any("quantise" in key or "round" in key for key in keys(graph)[2:])
    x = {"x": random(1, 4, 8, 8)}
    found = build(import_model(model), host_target()).run(x)["y"]
    np.testing.assert_allclose(found, expected(model, x)["y"], atol=1e-4)


def _reason(text: str, **weights: Any) -> str:
    graph, reasons = lowered(model_of(text, **weights))
    (reason,) = reasons.values()
    assert not any("weights=int8" in key for key in keys(graph))
    return reason


def test_what_does_not_fold_says_why() -> None:
    head = "g (float[3, 20] x) => (float[3, 5] y) {"
    quantised = "q = QuantizeLinear(x, s, z) n = DequantizeLinear(q, s, z) "
    numbers = {"s": np.float32(0.03), "z": np.uint8(120)}
    w = np.random.default_rng(0).integers(0, 256, (20, 5), dtype=np.uint8)
    assert "not in the middle" in _reason(
        head + quantised + "w = DequantizeLinear(c, s, wz) y = MatMul(n, w) }",
        c=w, wz=np.uint8(3), **numbers,
    )  # fmt: skip
    assert "activations are float32" in _reason(
        head + "w = DequantizeLinear(c, s, wz) y = MatMul(x, w) }",
        c=w, s=numbers["s"], wz=np.uint8(128),
    )  # fmt: skip
    assert "both operands vary" in _reason(
        "g (float[3, 20] x) => (float[3, 3] y) {" + quantised
        + "t = Transpose<perm = [1, 0]>(n) y = MatMul(n, t) }",
        **numbers,
    )  # fmt: skip
    assert "vary along what is summed" in _reason(
        head + quantised + "w = DequantizeLinear<axis = 0>(c, ws) y = MatMul(n, w) }",
        c=w.astype(np.int8), ws=np.abs(random(20)), **numbers,
    )  # fmt: skip


@given(st.integers(0, 200), st.integers(0, 200), st.booleans(), st.booleans(), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_bytes_passed_on_the_way_are_rounded_there(
    zero: int, last: int, residual: bool, relu: bool, seed: int
) -> None:
    """A product becomes bytes, these become numbers again, and those, with others, bytes."""
    layer = replace(IMAGE, zeros=(3, zero, 7), seed=seed, relu=relu)
    model, inputs = requantised(layer, residual, last), layer.inputs()
    if residual:
        shape = layer.result_shape()
        inputs["r"] = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    folded, reasons = lowered(model)
    (key,) = keys(folded)
    assert not reasons and "fake_quantise" in key
    found = run_reference(folded, inputs)["y"].astype(int)
    assert np.abs(found - expected(model, inputs)["y"].astype(int)).max() <= 1
    scale = float(layer.constants()["ys"])
    steps = layer.numbers_of(inputs) / scale
    numbers = (np.clip(np.rint(steps) + zero, 0, 255) - zero) * scale
    if residual:
        numbers = numbers + (inputs["r"].astype(float) - last) * RESIDUAL_SCALE
    exact = numbers / LAST_SCALE + last
    wanted = np.clip(np.rint(exact), 0, 255)
    between = (np.abs(steps % 1 - 0.5) < 2e-3) | (np.abs(exact % 1 - 0.5) < 2e-3)
    assert np.array_equal(found[~between], wanted[~between])


def test_means_of_bytes_are_of_bytes_and_joined_bytes_are_not_copied() -> None:
    rng = np.random.default_rng(0)
    text = "g (float[1, 4, 8, 8] x) => (float[1, 8, 1, 1] y) {"
    text += "q = QuantizeLinear(x, s, z) n = DequantizeLinear(q, s, z) v = DequantizeLinear(v0, t)"
    text += "a = Conv(n, v) aq = QuantizeLinear(a, s, z) an = DequantizeLinear(aq, s, z)"
    text += (
        "m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(an) c = Concat<axis = 1>(an, m)"
    )
    text += "cq = QuantizeLinear(c, s, z) cn = DequantizeLinear(cq, s, z)"
    text += (
        "g = GlobalAveragePool(cn) gq = QuantizeLinear(g, s, z) y = DequantizeLinear(gq, s, z) }"
    )
    weights = rng.integers(-127, 128, (4, 4, 1, 1), dtype=np.int8)
    names = {"s": np.float32(0.05), "z": np.uint8(128), "t": np.float32(0.02)}
    model = model_of(text, v0=weights, **names)
    graph, reasons = lowered(model)
    assert not reasons and [n.kind for n in graph.nodes].count("join") == 1
    pools = [key for key in keys(graph) if key.startswith("pool2d")]
    assert len(pools) == 2 and all("dtype=uint8" in key for key in pools)
    assert pools[-1].endswith("epilogue=scale,bias,quantise_uint8")
    x = {"x": random(1, 4, 8, 8)}
    found = build(import_model(model), host_target()).run(x)["y"]
    assert np.abs(found - expected(model, x)["y"]).max() <= 0.0501


@pytest.mark.extra
def test_fake_quantised_modules_of_pytorch_fold() -> None:
    """Their weights are float32 between two quantising nodes, and their activations int8."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Faked(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dense = torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.Linear(8, 5)

        def weights(self, weight: Any) -> Any:
            scale = weight.detach().abs().flatten(1).amax(1) / 127
            zero = torch.zeros(len(scale), dtype=torch.int32)
            return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)

        def forward(self, x: Any) -> Any:
            x = torch.fake_quantize_per_tensor_affine(x, 0.03, 5, -128, 127)
            y = torch.nn.functional.conv2d(
                x, self.weights(self.conv.weight), self.conv.bias, padding=1
            )
            y = torch.fake_quantize_per_tensor_affine(torch.relu(y), 0.02, -128, -128, 127)
            y = torch.fake_quantize_per_tensor_affine(y.mean((2, 3)), 0.01, -128, -128, 127)
            return torch.nn.functional.linear(y, self.weights(self.dense.weight), self.dense.bias)

    torch.manual_seed(0)
    file, x = io.BytesIO(), random(1, 4, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Faked().eval(), (torch.from_numpy(x),), file, dynamo=False, opset_version=17,
            input_names=["x"], output_names=["y"],
        )  # fmt: skip
    model = onnx.load_from_string(file.getvalue())
    graph, reasons = lowered(model)
    assert not reasons and len(products(graph)) == 2, reasons
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    assert np.abs(found - expected(model, {"x": x})["y"]).max() <= 0.0101


def test_compile_lists_what_did_not_fold(tmp_path: Path) -> None:
    model = model_of(
        "g (float[3, 20] x) => (float[3, 3] y) {"
        "q = QuantizeLinear(x, s, z) n = DequantizeLinear(q, s, z)"
        "t = Transpose<perm = [1, 0]>(n) y = MatMul(n, t) }",
        s=np.float32(0.03), z=np.uint8(120),
    )  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    words = ["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.tsm")]
    shown = CliRunner().invoke(command_line, words)
    assert "in float32 though quantised: 1 MatMul, both operands vary" in shown.output
    report = json.loads(CliRunner().invoke(command_line, [*words, "--json"]).output)
    assert report["unfolded"] == {"MatMul 'y'": "both operands vary"}


def test_long_sums_of_whole_numbers_that_cancel_are_exact() -> None:
    """Weights of the run, which no pass makes bytes of; float32 rounds sums beyond 2^24."""
    model = model_of(
        "g (uint8[4, 4096] a, int8[4096, 8] b) => (uint8[4, 8] y) "
        "{ y = QLinearMatMul(a, one, none, b, one, zero, one, middle) }",
        one=np.float32(1), none=np.uint8(0), zero=np.int8(0), middle=np.uint8(128),
    )  # fmt: skip
    a, b = np.full((4, 4096), 255, np.uint8), np.full((4096, 8), 127, np.int8)
    a[1:] = np.random.default_rng(0).integers(0, 256, (3, 4096))
    b[2048:], b[5], b[4093] = -127, np.arange(8) + 120, -124
    inputs = {"a": a, "b": b}
    result = build(import_model(model), host_target()).run(inputs)["y"]
    np.testing.assert_array_equal(result, expected(model, inputs)["y"])
