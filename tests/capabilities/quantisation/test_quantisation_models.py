"""Quantised models: what onnxruntime computes of the written file decides what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tilesmith as ts
from tests.compiler.model_builder import expected, model_of, random
from tilesmith.capabilities.quantisation.preparation.float_model import float_model, with_constants
from tilesmith.capabilities.quantisation.preparation.plan import QuantisationPlan, layers_of
from tilesmith.capabilities.quantisation.search.emulation import Emulation
from tilesmith.capabilities.quantisation.search.equalisation import equalised
from tilesmith.capabilities.quantisation.search.equalisation import pairs_of as balanced
from tilesmith.compiler.onnx.files.file import read_model
from tilesmith.jobs.subjects.targets import resolve_target

RESIDUAL = """residual (float[1, 8, 12, 12] x) => (float[1, 10] y)
{
    a = Conv <pads = [1, 1, 1, 1]> (x, wa) b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1], group = 16> (b, wc, bc)
    n = BatchNormalization (c, scale, shift, mean, variance) d = Clip(n, low, high)
    e = Conv(d, we) f = Add(e, b) g = Relu(f)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (g)
    h = Conv(p, wh, bh) i = Relu(h) j = Concat <axis = 1> (p, i)
    k = GlobalAveragePool(j) l = Flatten(k) y = Gemm <transB = 1> (l, wy, by)
}"""


def residual() -> onnx.ModelProto:
    """Convolutions (one depthwise, with batch normalisation), a sum, a join, pools, a product."""
    weights = {
        "wa": random(16, 8, 3, 3) / 8, "wc": random(16, 1, 3, 3) / 3, "bc": random(16),
        "scale": 1 + random(16, seed=1) / 4, "shift": random(16, seed=2),
        "mean": random(16, seed=3), "variance": 1 + random(16, seed=4) ** 2,
        "we": random(16, 16, 1, 1) / 4,
        "wh": random(8, 16, 1, 1) / 4, "bh": random(8), "wy": random(10, 24) / 4, "by": random(10),
        "low": np.float32(0), "high": np.float32(6),
    }  # fmt: skip
    return model_of(RESIDUAL, **weights)


def samples(count: int, *shape: int, name: str = "x") -> list[dict[str, NDArray[Any]]]:
    return [{name: random(*shape, seed=seed)} for seed in range(count)]


IMAGES = samples(6, 1, 8, 12, 12)


def pairs_of(model: onnx.ModelProto) -> dict[str, str]:
    """By node what it reads, through DequantizeLinear: names of tensors with a pair."""
    made = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in made:
            found[node.output[0]] = made[node.input[0]].input[0]
    return found


def error_of(model: onnx.ModelProto, other: onnx.ModelProto, inputs: Sequence[Any]) -> float:
    """As `jobs.measures.output_errors`, computed by onnxruntime and numpy."""
    ours = np.concatenate([expected(model, x)["y"].ravel() for x in inputs])
    theirs = np.concatenate([expected(other, x)["y"].ravel() for x in inputs])
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize(
    ("method", "symmetric"), [("minmax", False), ("percentile:99.99", False), ("mse", True)]
)
def test_the_written_model_is_close_and_its_error_is_the_one_reported(
    method: str, symmetric: bool
) -> None:
    model = residual()
    found = ts.quantize(model, IMAGES, method=method, symmetric=symmetric)
    onnx.checker.check_model(found.model, full_check=True)
    assert found.report.accuracy.error == pytest.approx(
        error_of(found.model, model, IMAGES), rel=0.1
    )
    assert found.report.accuracy.error < 0.06
    assert len(found.report.layers) == 5
    assert found.report.kept == ()
    assert found.report.accuracy.rows == 6
    assert found.report.float_bytes > 2.5 * found.report.quantised_bytes


def test_pairs_stand_where_all_can_be_integers() -> None:
    found = ts.quantize(residual(), IMAGES).model
    pairs = pairs_of(found)
    reads = {
        node.op_type: [pairs.get(name, name) for name in node.input if name in pairs]
        for node in found.graph.node
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Conv")
    }
    assert reads == {
        "Relu": [], "Clip": [], "Add": ["e", "b"], "MaxPool": ["g"], "Concat": ["p", "i"],
        "GlobalAveragePool": ["j"], "Flatten": ["k"], "Gemm": ["l"],
    }  # fmt: skip
    convolved = [pairs[n.input[0]] for n in found.graph.node if n.op_type == "Conv"]
    assert convolved == ["x", "b", "d", "p"]
    assert "BatchNormalization" not in {node.op_type for node in found.graph.node}
    scales = {n.input[0]: n.input[1] for n in found.graph.node if n.op_type == "QuantizeLinear"}
    assert scales["g"] == scales["p"] == scales["i"] == scales["j"]
    assert scales["k"] == scales["l"]
    assert len(set(scales.values())) == 6  # x, b, d, e, and the two groups


def test_what_a_layer_adds_to_a_residual_may_stay_unrounded() -> None:
    plain, fused = (ts.quantize(residual(), IMAGES, fuse_residuals=f) for f in (False, True))
    pairs = pairs_of(fused.model)
    (total,) = (node for node in fused.model.graph.node if node.op_type == "Add")
    assert [pairs.get(name, name) for name in total.input] == ["e", "b"]
    assert set(pairs_of(plain.model).values()) - set(pairs.values()) == {"e"}
    for seed in range(3):
        sample = {"x": random(1, 8, 12, 12, seed=200 + seed)}
        wanted = expected(fused.model, sample)["y"]
        step = np.abs(wanted).max() / 255
        np.testing.assert_allclose(ts.compile(fused.model).run(sample)["y"], wanted, atol=step)
    more = [{"x": random(1, 8, 12, 12, seed=300 + seed)} for seed in range(40)]
    assert error_of(fused.model, residual(), more) < 1.05 * error_of(plain.model, residual(), more)


SHORTCUT = """shortcut (float[1, 8, 6, 6] x) => (float[1, 4] y)
{
    a = Conv(x, wa) b = Relu(a) c = Conv(b, wc) %s g = Relu(f)
    k = GlobalAveragePool(g) l = Flatten(k) y = Gemm(l, wy)
}"""


@pytest.mark.parametrize(
    ("body", "unrounded"),
    [
        ("s = Conv(x, ws) f = Add(c, s)", ["c"]),  # the deeper one, wherever it stands
        ("s = Conv(x, ws) f = Add(s, c)", ["c"]),
        ("s = Conv(b, ws) f = Add(c, s)", ["c"]),
        ("s = Relu(c) f = Add(s, b)", []),  # bounded before it is added
        ("s = Add(c, b) f = Add(s, c)", []),  # read twice
        ("s = Add(c, k0) f = Add(s, b)", ["s"]),  # a bias
        ("f = Add(c, c)", []),
    ],
)
def test_one_of_what_is_added_stays_unrounded(body: str, unrounded: list[str]) -> None:
    weights = {
        "wa": random(8, 8, 1, 1), "wc": random(8, 8, 1, 1, seed=1),
        "ws": random(8, 8, 1, 1, seed=2), "wy": random(8, 4), "k0": random(1, 8, 1, 1),
    }  # fmt: skip
    model = model_of(SHORTCUT % body, **{k: v for k, v in weights.items() if k in SHORTCUT % body})
    data = samples(2, 1, 8, 6, 6)
    plain, fused = (ts.quantize(model, data, fuse_residuals=f).model for f in (False, True))
    left = set(pairs_of(plain).values()) - set(pairs_of(fused).values())
    assert sorted(left) == unrounded
    float_form = float_model(read_model(model))
    every = layers_of(float_form)
    full = QuantisationPlan.of(float_form, every, fuse_residuals=True)
    for count in range(len(every)):  # of fewer layers the plan is a part of the plan of more
        part = QuantisationPlan.of(
            float_form, every[:count] + every[count + 1 :], fuse_residuals=True
        )
        assert set(part.reads) <= set(full.reads)


def test_what_does_not_lead_to_a_layer_stays_in_float32() -> None:
    text = """m (float[4, 16] x) => (float[4, 8] y, float[4, 16] s)
    {
        h = MatMul(x, w) b = Add(h, c) g = Sigmoid(b) s = Softmax(g)
        r = Add(g, x) y = MatMul(r, v)
    }"""
    model = model_of(text, w=random(16, 16), c=random(16), v=random(16, 8))
    found = ts.quantize(model, samples(4, 4, 16))
    pairs = pairs_of(found.model)
    reads = {n.name: [pairs.get(i, i) for i in n.input] for n in found.model.graph.node}
    read = {name.partition("_")[0] + name[-1]: inputs for name, inputs in reads.items()}
    assert read["Softmax3"] == ["g"]
    assert read["Sigmoid2"] == ["b"]
    assert read["Add1"] == ["h", "c"]
    assert sorted(pairs.values()) == ["g", "r", "x"]


def test_folding_maps_by_channel_and_moved_weights_changes_no_value() -> None:
    model = residual()
    text = """m (float[3, 8] x) => (float[3, 5] y)
    { t = Transpose <perm = [1, 0]> (w) g = Gemm(x, t) y = BatchNormalization(g, a, b, c, d) }"""
    gemm = model_of(
        text, w=random(5, 8), a=random(5), b=random(5, seed=1), c=random(5, seed=2),
        d=1 + random(5) ** 2,
    )  # fmt: skip
    text = """m (float[1, 3, 4, 4] x) => (float[1, 6, 4, 4] y)
    { c = Conv(x, w) n = Mul(c, a) m = Add(b, n) k = Mul(m, two) y = Relu(k) }"""
    scaled = model_of(
        text, w=random(6, 3, 1, 1), a=random(1, 6, 1, 1), b=random(6, 1, 1), two=np.float32(2)
    )
    for given, x in (
        (model, IMAGES[0]), (gemm, {"x": random(3, 8)}), (scaled, {"x": random(1, 3, 4, 4)})
    ):  # fmt: skip
        plain = float_model(read_model(given))
        folded = onnx.ModelProto()
        folded.CopyFrom(plain.proto)
        with_constants(folded, plain.constants)
        assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
        assert not {"Transpose", "Mul"} & {node.op_type for node in folded.graph.node}
        wanted = expected(given, x)["y"]
        np.testing.assert_allclose(expected(folded, x)["y"], wanted, rtol=1e-4, atol=1e-4)


def test_constants_that_vary_inside_a_channel_are_not_folded() -> None:
    text = """m (float[1, 3, 2, 2] x) => (float[1, 2, 2, 2] y, float[1, 2, 2, 2] z)
    { a = Conv(x, w) y = Add(a, b) c = Conv(x, w) z = Mul(c, c) }"""
    model = model_of(text, w=random(2, 3, 1, 1), b=random(2, 2))
    plain = float_model(read_model(model))
    assert [node.op_type for node in plain.nodes] == ["Conv", "Add", "Conv", "Mul"]


def test_old_models_are_brought_to_an_opset_with_scales_along_an_axis() -> None:
    text = """m (float[4, 8] x) => (float[4, 6] y) { h = MatMul(x, w) y = Relu(h) }"""
    model = model_of(text, opset=9, w=random(8, 6))
    found = ts.quantize(model, samples(3, 4, 8))
    assert found.model.opset_import[0].version >= 13
    assert error_of(found.model, model, samples(3, 4, 8)) < 0.02


def test_emulation_computes_what_the_written_model_does() -> None:
    model = residual()
    found = ts.quantize(model, IMAGES)
    plain = float_model(read_model(model))
    for seed in range(3):
        sample = {"x": random(1, 8, 12, 12, seed=100 + seed)}
        wanted = expected(found.model, sample)["y"]
        ours = ts.compile(found.model).run(sample)["y"]
        step = np.abs(wanted).max() / 255
        np.testing.assert_allclose(ours, wanted, atol=step)
    plan = QuantisationPlan.of(plain, layers_of(plain))
    emulation = Emulation(plain, plan, resolve_target("cpu"))
    nothing = type(
        "Nothing", (), {"plan": QuantisationPlan((), (), {}), "tensors": {}, "layers": {}}
    )
    exact = emulation.run(IMAGES[0], nothing)["y"]  # type: ignore[arg-type]
    np.testing.assert_allclose(exact, expected(model, IMAGES[0])["y"], rtol=1e-4, atol=1e-5)


def with_outlier() -> onnx.ModelProto:
    """Four products; the third has one input channel a thousand times the others, which the scale
    of its input has to cover and its weights all but ignore."""
    text = """m (float[8, 32] x) => (float[8, 32] y)
    {
        a = MatMul(x, w0) ra = Relu(a) b = MatMul(ra, w1) rb = Relu(b)
        s = Mul(rb, spread) c = MatMul(s, w2) rc = Relu(c) y = MatMul(rc, w3)
    }"""
    spread = np.ones(32, np.float32)
    spread[5] = 1000
    w2 = random(32, 32, seed=3) / 4
    w2[5] /= 1000
    return model_of(
        text, w0=random(32, 32) / 4, w1=random(32, 32, seed=2) / 4, w2=w2,
        w3=random(32, 32, seed=4) / 4, spread=spread,
    )  # fmt: skip


def test_the_layer_behind_an_outlier_is_the_most_sensitive_and_is_kept() -> None:
    model, data = with_outlier(), samples(8, 8, 32)
    whole = ts.quantize(model, data, sensitivities=True)
    errors = [s.error for s in whole.report.sensitivities]
    assert errors == sorted(errors, reverse=True)
    first = whole.report.sensitivities[0]
    assert first.layer.weights == "w2"
    assert errors[0] > 5 * errors[1]
    budget = 2 * errors[1]
    found = ts.quantize(model, data, budget=budget)
    assert found.report.kept == (first.layer.node,)
    assert found.report.accuracy.error <= budget < whole.report.accuracy.error
    assert error_of(found.model, model, data) <= 1.05 * budget
    kept = next(n for n in found.model.graph.node if n.name == first.layer.node)
    assert list(kept.input) == ["s", "w2"]


def test_a_budget_of_nothing_keeps_every_layer_and_a_large_one_none() -> None:
    model, data = with_outlier(), samples(2, 8, 32)
    found = ts.quantize(model, data, budget=0)
    assert len(found.report.kept) == 4
    assert {node.op_type for node in found.model.graph.node} == {"MatMul", "Relu", "Mul"}
    assert ts.quantize(model, data, budget=1000).report.kept == ()


def test_nodes_and_operators_can_be_left_out() -> None:
    model = residual()
    names = [layer.node for layer in layers_of(float_model(read_model(model)))]
    found = ts.quantize(model, IMAGES, keep=names[1:2], operators=("Conv",))
    assert [layer.operator for layer in found.report.layers] == ["Conv"] * 3
    assert found.report.kept == (names[1], names[4])
    pairs = pairs_of(found.model)
    assert sorted(pairs.values()) == ["d", "p", "x"]  # neither the sum nor the join


def test_inputs_of_zeros_and_channels_of_zeros() -> None:
    model = residual()
    tensors = {t.name: t for t in model.graph.initializer}
    tensors["wa"].CopyFrom(onnx.numpy_helper.from_array(np.zeros((16, 8, 3, 3), np.float32), "wa"))
    found = ts.quantize(model, [{"x": np.zeros((1, 8, 12, 12), np.float32)}])
    outputs = expected(found.model, IMAGES[0])["y"]
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(outputs, expected(model, IMAGES[0])["y"], atol=0.1)


def test_equalisation_changes_no_value_and_saves_channels_that_one_scale_does_not_suit() -> None:
    text = """m (float[1, 8, 6, 6] x) => (float[1, 10] y)
    {
        a = Conv(x, wa, ba) b = Relu(a) c = Conv <group = 16, pads = [1, 1, 1, 1]> (b, wc)
        d = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (d) e = Conv(p, we, be)
        k = GlobalAveragePool(e) l = Flatten(k) g = Gemm(l, wg, bg) h = Relu(g) y = Gemm(h, wy)
    }"""
    spread = np.logspace(-2, 2, 16, dtype=np.float32)
    model = model_of(
        text, wa=random(16, 8, 1, 1) * spread[:, None, None, None], ba=random(16) * spread,
        wc=random(16, 1, 3, 3) / spread[:, None, None, None], we=random(12, 16, 1, 1),
        be=random(12), wg=random(12, 20), bg=random(20), wy=random(20, 10),
    )  # fmt: skip
    data = samples(4, 1, 8, 6, 6)
    plain = float_model(read_model(model))
    assert [(p.first.weights, p.second.weights, p.depthwise) for p in balanced(plain)] == [
        ("wa", "wc", True), ("wc", "we", False), ("wg", "wy", False)
    ]  # fmt: skip
    changed = equalised(plain, data, resolve_target("cpu"))
    same = onnx.ModelProto()
    same.CopyFrom(plain.proto)
    with_constants(same, changed.constants)
    for sample in data:
        wanted = expected(model, sample)["y"]
        np.testing.assert_allclose(expected(same, sample)["y"], wanted, rtol=1e-4)
    before, after = (ts.quantize(model, data, equalise=e).report for e in (False, True))
    assert after.accuracy.error < 0.03
    assert before.accuracy.error > 4 * after.accuracy.error
