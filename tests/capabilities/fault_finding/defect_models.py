"""Models that faults of the compiler make wrong."""

from __future__ import annotations

import numpy as np

from tests.compiler.model_builder import model_of, random

LAYERS = model_of(
    """g (float[4, 12] x) => (float[4, 6] y) {
    a = Gemm(x, w, b) c = Relu(a) d = Slice(c, from, to, axis) e = Tanh(d) f = Mul(e, three)
    g = MatMul(f, v) h = Sigmoid(g) y = Softmax(h) }""",
    w=random(12, 16), b=random(16), v=random(8, 6), three=np.float32(3),
    **{"from": np.array([4]), "to": np.array([12]), "axis": np.array([1])},
)  # fmt: skip
IMAGES = model_of(
    """g (float[1, 3, 9, 9] x) => (float[1, 4, 3, 3] y) {
    a = Conv<pads=[0, 0, 1, 1]>(x, w) b = Relu(a)
    c = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(b) d = Conv(c, v)
    e = Sigmoid(d) y = Slice(e, one, end, axes) }""",
    w=random(16, 3, 3, 3), v=random(4, 16, 1, 1),
    one=np.array([1, 1]), end=np.array([4, 4]), axes=np.array([2, 3]),
)  # fmt: skip
LOGITS = model_of(
    "g (float[3, 20] x) => (float[3, 20] y) { a = Mul(x, big) b = Exp(x) c = Softmax(a) "
    "y = Mul(c, b) }",
    big=np.float32(200),
)  # fmt: skip
FOLDED = model_of(
    """g (float[4, 50] x) => (float[4, 50] y) {
    k = ReduceMean<axes=[0], keepdims=0>(w) a = Mul(x, k) y = Tanh(a) }""",
    w=random(200, 50) + 1,
)  # fmt: skip
CROSSED = model_of(
    """g (float[4, 16] x) => (float[4, 16] y) {
    a = MatMul(x, w) b = Softmax(a) c = MatMul(b, v) d = Softmax(c) y = Mul(d, a) }""",
    w=random(16, 16), v=random(16, 16, seed=1),
)  # fmt: skip
TALL = model_of(
    """g (float[256, 16] x) => (float[256, 16] y) {
    a = MatMul(x, w) b = Softmax(a) y = MatMul(b, v) }""",
    w=random(16, 16), v=random(16, 16, seed=1),
)  # fmt: skip
GATED = model_of(
    "g (float[4, 16] x) => (float[4, 16] y) { a = Sigmoid(x) b = Add(a, half) y = Mul(b, x) }",
    half=np.float32(0.5),
)
QUANTISED = model_of(
    """g (float[4, 16] x) => (float[4, 8] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = DequantizeLinear(w, t, o)
    m = MatMul(d, r) n = Relu(m) p = QuantizeLinear(n, u, z) y = DequantizeLinear(p, u, z) }""",
    s=np.float32(0.03), z=np.uint8(128), t=np.float32(0.01), o=np.int8(0), u=np.float32(0.05),
    w=np.random.default_rng(3).integers(-100, 100, (16, 8)).astype(np.int8),
)  # fmt: skip
