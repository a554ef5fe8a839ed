"""Models of one operator that leaves partitions idle: latency and error on trn1.

    python -m benchmarks.accelerator.few_rows [--target trn2] [--precision bf16]

Rows that are few, long or none in memory, and groups of few channels. Sizes are those of real
models: groups of a diffusion network, a vocabulary, classes of a segmented
image, a quantised tensor, a model in 16 bits. What a line says: `small_models.py`.
"""

from __future__ import annotations

try:
    import numpy as np

    from benchmarks.accelerator.subjects.small_models import main
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

CASES = {
    "group norm 1x64x64x64, 8 groups": "(float[1,64,64,64] x) => (float[1,64,64,64] y) { "
    "y = GroupNormalization<num_groups=8>(x, s, b) }",
    "softmax 4x50257": "(float[4,50257] x) => (float[4,50257] y) { y = Softmax(x) }",
    "softmax 1x21x128x128 over channels": "(float[1,21,128,128] x) => (float[1,21,128,128] y) "
    "{ y = Softmax<axis=1>(x) }",
    "maximum 1x21x128x128 over channels": "(float[1,21,128,128] x) => (float[1,1,128,128] y) "
    "{ y = ReduceMax(x, one) }",
    "mean 1x256x28x28 over channels": "(float[1,256,28,28] x) => (float[1,1,28,28] y) "
    "{ y = ReduceMean(x, one) }",
    "sum 512x1024 over rows": "(float[512,1024] x) => (float[1,1024] y) { y = ReduceSum(x, zero) }",
    "mean of 1x3x512x512": "(float[1,3,512,512] x) => (float[1,1,1,1] y) { y = ReduceMean(x) }",
    "convolution 128x28x28, 32 groups": "(float[1,128,28,28] x) => (float[1,128,28,28] y) "
    "{ y = Conv<group=32, kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, g) }",
    "argmax 8x32000": "(float[8,32000] x) => (int64[8,1] y) { y = ArgMax<axis=1>(x) }",
    "argmax 1x21x128x128 over channels": "(float[1,21,128,128] x) => (int64[1,1,128,128] y) "
    "{ y = ArgMax<axis=1>(x) }",
    "instance norm 1x64x56x56": "(float[1,64,56,56] x) => (float[1,64,56,56] y) "
    "{ y = InstanceNormalization(x, s, b) }",
    "resize linear 1x32x32x32 to 64x64": "(float[1,32,32,32] x) => (float[1,32,64,64] y) "
    '{ y = Resize<mode="linear">(x, , twice) }',
    "resize linear 1x21x33x33 to 128x128": "(float[1,21,33,33] x) => (float[1,21,128,128] y) "
    '{ y = Resize<mode="linear">(x, , , large) }',
    "quantise, dequantise 128x768": "(float[128,768] x) => (float[128,768] y) "
    "{ q = QuantizeLinear(x, scale, point) y = DequantizeLinear(q, scale, point) }",
    "float16 product 128x768x768": "(float16[128,768] x) => (float16[128,768] y) "
    "{ y = MatMul(x, w) }",
}
_RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "s": np.ones(64, np.float32), "b": np.zeros(64, np.float32), "one": np.array([1]),
    "zero": np.array([0]), "scale": np.float32(0.05), "point": np.uint8(128),
    "twice": np.array([1, 1, 2, 2], np.float32), "large": np.array([1, 21, 128, 128]),
    "g": 0.1 * _RANDOM.standard_normal((128, 4, 3, 3)).astype(np.float32),
    "w": _RANDOM.standard_normal((768, 768)).astype(np.float16),
}  # fmt: skip


if __name__ == "__main__":
    main(__doc__, CASES, WEIGHTS)
