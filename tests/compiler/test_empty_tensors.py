"""Tensors without elements: an extent of zero goes in, through and out, as onnxruntime has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.compiler.model_builder import assert_close, expected, model_of
from tilesmith.compiler.executable import Executable
from tilesmith.search_space.errors import ModelError

MODELS = {
    "pointwise": (
        "(float[0, 3] x) => (float[0, 3] y)",
        "a = Relu(x) b = Exp(a) y = Add(b, x)",
    ),
    "broadcast": (
        "(float[0, 3] x, float[1, 3] b) => (float[0, 3] y)",
        "y = Mul(x, b)",
    ),
    "no rows": (
        "(float[0, 4] x, float[4, 5] w) => (float[0, 5] y)",
        "y = MatMul(x, w)",
    ),
    "sum of nothing": (
        "(float[2, 0] x, float[0, 5] w) => (float[2, 5] y)",
        "y = MatMul(x, w)",
    ),
    "gemm": (
        "(float[2, 0] x, float[0, 5] w, float[5] b) => (float[2, 5] y)",
        "y = Gemm(x, w, b)",
    ),
    "batches": (
        "(float[0, 2, 4] x, float[0, 4, 5] w) => (float[0, 2, 5] y)",
        "y = MatMul(x, w)",
    ),
    "conv": (
        "(float[0, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[0, 4, 6, 6] y)",
        "y = Conv(x, w)",
    ),
    "global max": (
        "(float[0, 3, 8, 8] x) => (float[0, 3, 1, 1] y)",
        "y = GlobalMaxPool(x)",
    ),
    "transposed conv": (
        "(float[0, 3, 8, 8] x, float[3, 4, 3, 3] w) => (float[0, 4, 10, 10] y)",
        "y = ConvTranspose(x, w)",
    ),
    "average": (
        "(float[0, 3, 8, 8] x) => (float[0, 3, 4, 4] y)",
        "y = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(x)",
    ),
    "instance norm": (
        "(float[0, 3, 8] x, float[3] s, float[3] b) => (float[0, 3, 8] y)",
        "y = InstanceNormalization(x, s, b)",
    ),
    "argmax": (
        "(float[0, 3] x) => (int64[0, 1] y)",
        "y = ArgMax<axis=1>(x)",
    ),
    "topk": (
        "(float[0, 3] x) => (float[0, 2] v, int64[0, 2] i)",
        "v, i = TopK(x, two)",
    ),
    "resize": (
        "(float[0, 3, 2, 2] x) => (float[0, 3, 4, 4] y)",
        "y = Resize(x, , scales)",
    ),
    "cumsum": (
        "(float[0, 3] x) => (float[0, 3] y)",
        "y = CumSum(x, one)",
    ),
    "max": (
        "(float[0, 3] x, float[3] z) => (float[0, 3] y)",
        "y = Max(x, z)",
    ),
    "scatter": (
        "(float[4, 3] x, int64[0, 1] i, float[0, 3] u) => (float[4, 3] y)",
        "y = ScatterND(x, i, u)",
    ),
    "gather elements": (
        "(float[4, 3] x, int64[0, 3] i) => (float[0, 3] y)",
        "y = GatherElements(x, i)",
    ),
    "unsqueeze": (
        "(float[0, 3] x) => (float[0, 1, 3] y)",
        "a = Relu(x) y = Unsqueeze(a, axes)",
    ),
    "quantize": (
        "(float[0, 3] x, float s, uint8 z) => (uint8[0, 3] y)",
        "y = QuantizeLinear(x, s, z)",
    ),
    "pool": (
        "(float[0, 3, 8, 8] x) => (float[0, 3, 4, 4] y)",
        "y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)",
    ),
    "global pool": (
        "(float[0, 3, 8, 8] x) => (float[0, 3, 1, 1] y)",
        "y = GlobalAveragePool(x)",
    ),
    "concat": (
        "(float[0, 3] x, float[2, 3] z) => (float[2, 3] y)",
        "a = Relu(x) b = Relu(z) y = Concat<axis=0>(a, b)",
    ),
    "concat last": (
        "(float[2, 0] x, float[2, 3] z) => (float[2, 3] y)",
        "b = Relu(z) y = Concat<axis=1>(x, b)",
    ),
    "reduction": (
        "(float[2, 0] x) => (float[2, 1] y)",
        "y = ReduceSum<keepdims=1>(x, axes)",
    ),
    "mean": (
        "(float[0, 3] x) => (float[0, 1] y)",
        "y = ReduceMean<axes=[1]>(x)",
    ),
    "softmax": (
        "(float[0, 3] x) => (float[0, 3] y)",
        "y = Softmax(x)",
    ),
    "transpose": (
        "(float[2, 0, 3] x) => (float[3, 2, 0] y)",
        "y = Transpose<perm=[2, 0, 1]>(x)",
    ),
    "views": (
        "(float[2, 0, 3] x) => (float[0, 2] y)",
        "a = Flatten(x) b = Relu(a) y = Reshape<allowzero=1>(b, shape)",
    ),
    "slice": (
        "(float[4, 3] x) => (float[4, 3] y)",
        "a = Relu(x) b = Slice(a, two, two) c = Neg(b) d = Concat<axis=0>(c, a) y = Identity(d)",
    ),
    "gather": (
        "(float[4, 3] x, int64[0] i) => (float[0, 3] y)",
        "a = Relu(x) y = Gather(a, i)",
    ),
    "where": (
        "(bool[0, 3] c, float[0, 3] x, float[3] z) => (float[0, 3] y)",
        "y = Where(c, x, z)",
    ),
    "norm": (
        "(float[0, 3] x, float[3] s, float[3] b) => (float[0, 3] y)",
        "y = LayerNormalization(x, s, b)",
    ),
    "batch norm": (
        "(float[0, 3, 2] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[0, 3, 2] y)",
        "y = BatchNormalization(x, s, b, m, v)",
    ),
    "pad": (
        "(float[0, 3] x) => (float[2, 3] y)",
        "y = Pad(x, pads)",
    ),
    "expand": (
        "(float[1, 3] x) => (float[0, 3] y)",
        "a = Relu(x) y = Expand(a, nothing)",
    ),
    "split": (
        "(float[2, 3] x) => (float[0, 3] a, float[2, 3] b)",
        "r = Relu(x) a, b = Split(r, parts)",
    ),
    "einsum": (
        "(float[0, 3] x, float[3, 2] z) => (float[0, 2] y)",
        'y = Einsum<equation="ij,jk->ik">(x, z)',
    ),
    "tile": (
        "(float[2, 3] x) => (float[0, 3] y)",
        "y = Tile(x, none)",
    ),
    "cast": (
        "(float[0, 3] x) => (int64[0, 3] y)",
        "y = Cast<to=7>(x)",
    ),
}
"""Inputs and outputs of a graph, and its nodes."""

WEIGHTS = {
    "axes": np.array([1]), "shape": np.array([0, 2]), "two": np.array([2]),
    "pads": np.array([1, 0, 1, 0]), "nothing": np.array([0, 3]), "parts": np.array([0, 2]),
    "none": np.array([0, 1]), "one": np.array(1), "scales": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "trn1"])
@pytest.mark.parametrize("name", MODELS)
def test_tensors_may_have_no_elements(name: str, target: str, tmp_path: Path) -> None:
    signature, nodes = MODELS[name]
    weights = {key: value for key, value in WEIGHTS.items() if f", {key}" in nodes}
    model = model_of(f"g {signature} {{ {nodes} }}", **weights)
    executable = ts.compile(model, target)
    rng = np.random.default_rng(0)
    inputs = {
        info.name: rng.integers(0, 2, info.dims).astype(info.dtype) for info in executable.inputs
    }
    wanted = expected(model, inputs)
    assert_close(executable.run(inputs), wanted)
    executable.save(tmp_path / "model.tsm")
    assert_close(Executable.load(tmp_path / "model.tsm").run(inputs), wanted)


def test_negative_extents_are_refused() -> None:
    model = model_of("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="has the shape -1x3; no dimension may be negative"):
        ts.compile(model, shapes={"x": (-1, 3)})
