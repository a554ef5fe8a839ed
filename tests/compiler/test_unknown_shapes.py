"""Tensors whose shapes only a run tells, where the file declares what comes of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model

IMAGE, ROWS, CUBE = (1, 8, 6, 4), (6, 8), (1, 6, 8)
WEIGHTS = {
    "w": random(8, 8), "k": random(8, 8, 3, 3), "v": random(8), "c": np.float32(3.0),
    "last": np.array([-1]), "repeats": np.array([1, 2, 1, 1]), "sizes": np.array([1, 8, 12, 8]),
    "two": random(1, 8, 8), "pads": np.array([0, 1, 0, 1]), "first": np.array([0]),
}  # fmt: skip

MODELS = {
    "MatMul": (ROWS, ROWS, "y = MatMul(x, w)"),
    "scaled MatMul": (ROWS, ROWS, "a = Mul(x, c) y = MatMul(a, w)"),
    "known by unknown": (ROWS, (6, 6), "a = Mul(z, c) t = Transpose(x) y = MatMul(a, t)"),
    "Gemm": (ROWS, ROWS, "y = Gemm(x, w, v)"),
    "batched MatMul": (CUBE, CUBE, "y = MatMul(x, two)"),
    "Conv": (IMAGE, (1, 8, 4, 2), "y = Conv(x, k)"),
    "ConvTranspose": (IMAGE, (1, 8, 8, 6), "y = ConvTranspose(x, k)"),
    "MaxPool": (IMAGE, (1, 8, 5, 3), "y = MaxPool<kernel_shape = [2, 2]>(x)"),
    "GlobalAveragePool": (IMAGE, (1, 8, 1, 1), "y = GlobalAveragePool(x)"),
    "InstanceNormalization": (IMAGE, IMAGE, "y = InstanceNormalization(x, v, v)"),
    "LayerNormalization": (ROWS, ROWS, "y = LayerNormalization(x, v, v)"),
    "BatchNormalization": (IMAGE, IMAGE, "a = Abs(v) y = BatchNormalization(x, v, v, v, a)"),
    "Softmax": (ROWS, ROWS, "y = Softmax(x)"),
    "Max": (ROWS, ROWS, "y = Max(x, z, x)"),
    "Mean": (ROWS, ROWS, "y = Mean(x, z)"),
    "Add to a product": (ROWS, ROWS, "a = MatMul(z, w) b = Add(a, x) y = Relu(b)"),
    "ReduceL2": (ROWS, (6, 1), "y = ReduceL2<axes = [1]>(x)"),
    "ReduceMean": (ROWS, (6, 1), "y = ReduceMean<axes = [1]>(x)"),
    "ReduceLogSumExp": (ROWS, (6, 1), "y = ReduceLogSumExp<axes = [1]>(x)"),
    "DepthToSpace": (IMAGE, (1, 2, 12, 8), "y = DepthToSpace<blocksize = 2>(x)"),
    "SpaceToDepth": (IMAGE, (1, 32, 3, 2), "y = SpaceToDepth<blocksize = 2>(x)"),
    "Expand": (ROWS, ROWS, "s = Shape(z) y = Expand(x, s)"),
    "Tile": (IMAGE, (1, 16, 6, 4), "y = Tile(x, repeats)"),
    "Resize": (IMAGE, (1, 8, 12, 8), "y = Resize(x, , , sizes)"),
    "Pad": (ROWS, (6, 10), "y = Pad(x, pads)"),
    "Transpose": (ROWS, (8, 6), "y = Transpose<perm = [1, 0]>(x)"),
    "Concat": (ROWS, (12, 8), "y = Concat<axis = 0>(x, z)"),
    "Split": (ROWS, (3, 8), "y, rest = Split<axis = 0>(x)"),
    "Slice": (ROWS, (1, 8), "e = Neg(last) y = Slice(x, first, e)"),
    "Gather": (ROWS, (1, 8), "y = Gather(x, first)"),
    "Einsum": (ROWS, (6, 6), 'y = Einsum<equation = "ij,kj->ik">(x, z)'),
    "Where": (ROWS, ROWS, "m = Less(x, z) a = Where(m, x, c) y = Softmax(a)"),
    "Cast": (ROWS, ROWS, "a = Cast<to = 11>(x) b = Cast<to = 1>(a) y = Relu(b)"),
    "Clip": (ROWS, ROWS, "y = Clip(x, , c)"),
    "PRelu": (ROWS, ROWS, "y = PRelu(x, v)"),
    "LRN": (IMAGE, IMAGE, "y = LRN<size = 3>(x)"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_declared_result_of_an_unknown_input(name: str) -> None:
    source, result, nodes = MODELS[name]
    declared = ", ".join(map(str, result))
    read = set(re.findall(r"\w+", nodes))
    weights = {key: value for key, value in WEIGHTS.items() if key in read}
    model = model_of(
        f"g (float[{', '.join(map(str, source))}] given, int64[{len(source)}] shape, "
        f"float[6, 8] z) => (float[{declared}] y) {{ x = Reshape(given, shape) {nodes} }}",
        **weights,
    )  # fmt: skip
    inputs = {
        "given": random(*source, seed=1), "shape": np.array(source), "z": random(6, 8, seed=2),
    }  # fmt: skip
    found = build(import_model(model), host_target()).run(inputs)
    assert_close(found, expected(model, inputs))
