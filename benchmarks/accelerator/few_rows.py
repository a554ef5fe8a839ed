"""Models of one operator that leaves partitions idle: latency and error on trn1.

    python -m benchmarks.accelerator.few_rows [--target trn2] [--precision bf16]

Rows that are few, long or none in memory, and groups of few channels. Sizes are those of real
models: groups of a diffusion network, a vocabulary, classes of a segmented
image, a quantised tensor, a model in 16 bits. The error is max|a - b| / max|b| against ONNX
Runtime.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

import tilesmith
from tilesmith.jobs.compiling import random_inputs

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
    "quantise, dequantise 128x768": "(float[128,768] x) => (float[128,768] y) "
    "{ q = QuantizeLinear(x, scale, point) y = DequantizeLinear(q, scale, point) }",
    "float16 product 128x768x768": "(float16[128,768] x) => (float16[128,768] y) "
    "{ y = MatMul(x, w) }",
}
_RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "s": np.ones(64, np.float32), "b": np.zeros(64, np.float32), "one": np.array([1]),
    "zero": np.array([0]), "scale": np.float32(0.05), "point": np.uint8(128),
    "g": 0.1 * _RANDOM.standard_normal((128, 4, 3, 3)).astype(np.float32),
    "w": _RANDOM.standard_normal((768, 768)).astype(np.float16),
}  # fmt: skip


def model_of(text: str) -> onnx.ModelProto:
    """A model of one case, with the weights that it names."""
    graph = parser.parse_graph(f"g {text}")
    used = {name for node in graph.node for name in node.input}
    for name in used & WEIGHTS.keys():
        graph.initializer.append(numpy_helper.from_array(np.asarray(WEIGHTS[name]), name))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model


def line(name: str, model: onnx.ModelProto, path: Path, target: str, precision: str) -> str:
    """What is printed of one case."""
    onnx.save(model, str(path))
    try:
        executable = tilesmith.compile(path, target, precision=precision)
    except tilesmith.TilesmithError as error:
        return f"{name:36s} refused: {error}"
    inputs = random_inputs(executable)
    found = executable.run(inputs)["y"].astype(np.float64)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, dict(inputs))
    error = np.abs(found - wanted).max() / np.abs(wanted.astype(np.float64)).max()
    simulated = tilesmith.simulate(path, target, precision=precision)
    host = simulated.details["host"]
    roofline = simulated.details["model_roofline_us"]
    where = f", {host} on the host" if host else ""
    return (
        f"{name:36s} {simulated.latency_us:8.1f} us, roofline {roofline:6.1f} us, "
        f"{executable.report.default} kernels{where}, error {error:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="trn1")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in CASES.items():
            path = Path(folder) / "case.onnx"
            print(line(name, model_of(text), path, asked.target, asked.precision), flush=True)


if __name__ == "__main__":
    main()
