"""Weights in blocks: codes against a search by hand, the written model in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilesmith as ts
from tests.compiler.model_builder import expected, model_of, random
from tilesmith.capabilities.quantisation.numbers.block_weights import Blocks, block_weights
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer

LAYER = WeightedLayer("n", "MatMul", "x", "w", 1)

HEAD = """head (float[2, 3, 40] x) => (float[2, 3, 70] y)
{ h = MatMul(x, w) r = Relu(h) t = Transpose <perm = [1, 0]> (e) y = MatMul(r, t) }"""
"""Two products, the second by a table that lies behind a Transpose, as output heads do."""


def head() -> onnx.ModelProto:
    return model_of(HEAD, w=random(40, 33) / 6, e=random(70, 33) / 6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_codes_are_the_nearest_and_mean_the_weights(bits: int, symmetric: bool) -> None:
    weights = random(50, 7)  # a block of 32 and one of 18
    found = block_weights(LAYER, weights, Blocks(bits, 32, symmetric))
    assert found.codes.shape == (7, 2, 32)
    assert found.codes.max() < 2**bits
    step = np.repeat(np.abs(found.scales), 32, axis=1)[:, :50].T
    within = np.abs(found.floats() - weights) <= step * 0.501
    if symmetric:  # the number opposite to the extreme has no code of its own
        within |= np.abs(found.floats() - weights) <= step * 1.001
    assert within.all()
    transposed = block_weights(WeightedLayer("n", "Gemm", "x", "w", 0), weights.T, Blocks(bits))
    plain = block_weights(LAYER, weights, Blocks(bits))
    assert np.array_equal(transposed.floats(), plain.floats().T)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_search_is_no_worse_in_any_block_and_better_over_all(symmetric: bool) -> None:
    weights = np.random.default_rng(0).standard_t(3, (256, 40)).astype(np.float32)

    def errors(search: bool) -> np.ndarray:
        found = block_weights(LAYER, weights, Blocks(4, 32, symmetric, search)).floats()
        return ((found - weights) ** 2).reshape(8, 32, 40).sum(axis=1)

    nearest, searched = errors(False), errors(True)
    assert (searched <= nearest * (1 + 1e-5)).all()
    assert searched.sum() < 0.97 * nearest.sum()


def test_blocks_of_zeros_and_of_one_sign() -> None:
    weights = np.zeros((64, 3), np.float32)
    weights[32:, 1], weights[:, 2] = 5.0, -3.0
    for symmetric in (False, True):
        for search in (False, True):
            found = block_weights(LAYER, weights, Blocks(4, 32, symmetric, search))
            np.testing.assert_allclose(found.floats(), weights, atol=0.72 if symmetric else 1e-5)


@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_onnxruntime_and_we_compute_what_the_codes_mean(weights: str, symmetric: bool) -> None:
    model, sample = head(), {"x": random(2, 3, 40)}
    found = ts.quantize(model, [sample], weights=weights, symmetric=symmetric, block=16)
    operators = [node.op_type for node in found.model.graph.node]
    assert operators == ["MatMulNBits", "Relu", "MatMulNBits"]
    theirs = expected(found.model, sample)["y"]
    wanted = expected(model, sample)["y"]
    error = float(np.linalg.norm(theirs - wanted) / np.linalg.norm(wanted))
    assert found.report.accuracy is not None
    assert found.report.accuracy.error == pytest.approx(error, rel=0.15)
    assert error < (0.12 if weights == "int4" else 0.02)
    ours = ts.compile(found.model).run(sample)["y"]
    np.testing.assert_allclose(ours, theirs, atol=0.02 * np.abs(theirs).max())


def test_no_data_is_needed_and_biases_stay() -> None:
    text = """m (float[rows, 32] x) => (float[rows, 8] y) { y = Gemm <transB = 1> (x, w, b) }"""
    model = model_of(text, w=random(8, 32), b=random(8))
    found = ts.quantize(model, weights="int8", method="mse")
    assert found.report.accuracy is None
    assert 0 < found.report.weight_error < 0.01
    x = {"x": random(3, 32)}
    wanted = expected(model, x)["y"]
    np.testing.assert_allclose(expected(found.model, x)["y"], wanted, atol=0.2)


def test_a_budget_keeps_the_product_that_needs_it() -> None:
    text = """m (float[8, 32] x) => (float[8, 32] y) { a = MatMul(x, w) y = MatMul(a, v) }"""
    coarse = random(32, 32, seed=1)
    coarse[3] *= 300  # what shares a block with these is lost
    model = model_of(text, w=random(32, 32), v=coarse)
    data = [{"x": random(8, 32) * np.where(np.arange(32) == 3, 1e-4, 1).astype(np.float32)}]
    model.graph.node[0].input[1], model.graph.node[1].input[1] = "v", "w"
    whole = ts.quantize(model, data, weights="int4", sensitivities=True)
    first, second = whole.report.sensitivities
    assert first.layer.weights == "v"
    found = ts.quantize(model, data, weights="int4", budget=(first.error + second.error) / 2)
    assert found.report.kept == (first.layer.node,)


def test_wrong_blocks_are_refused() -> None:
    for asked, words in (
        ({"weights": "int3"}, "int4 or int8"),
        ({"weights": "int4", "block": 24}, "power of two"),
        ({"weights": "int4", "method": "percentile:99"}, "for activations"),
        ({"weights": "int4", "budget": 0.1}, "needs calibration data"),
    ):
        with pytest.raises(ts.InputError, match=words):
            ts.quantize(head(), **asked)
