"""Single operators of random kinds and sizes beside ONNX Runtime, as they come from `compile`.

    pip install 'tilesmith[peers]'
    python benchmarks/random_operators.py [--count 60] [--seed 0] [--only REGEX] [--json FILE]

Each operator is a one-node ONNX model, compiled without any tuning and without packs, and timed in
turns with the peer on one pinned core. The figure is our median over the peer's. Sizes are drawn by
the seed from what occurs in networks and what does not (odd extents, few channels, long rows), so
that no list of shapes can be learnt by heart. Printed are the ratios from the worst, those above
`LIMIT`, and the geometric mean of each kind. Exit code 1 if one is above the limit.
"""

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from subjects.operator_models import Drawn

import tilesmith
from tilesmith.display.output import note, table
from tilesmith.jobs.compilation.reports import Comparison
from tilesmith.jobs.evaluation.benching import compare

Kind = Callable[[np.random.Generator], Drawn]

LIMIT = 0.93
"""The largest ratio that passes."""


def size(rng: np.random.Generator, least: int, most: int) -> int:
    """A size that is as likely small as large; half of them are multiples of 8."""
    value = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    return max(8, value // 8 * 8) if value >= 8 and rng.random() < 0.5 else value


def floats(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Normal numbers."""
    return rng.standard_normal(shape, dtype=np.float32)


def several(rng: np.random.Generator, dims: int, elements: int) -> tuple[int, ...]:
    """A shape of so many axes with about so many elements at most."""
    shape = [size(rng, 2, max(3, int(elements ** (1.6 / dims)))) for _ in range(dims)]
    while math.prod(shape) > elements:
        largest = shape.index(max(shape))
        shape[largest] = max(1, shape[largest] // 2)
    return tuple(shape)


def matmul(rng: np.random.Generator) -> Drawn:
    m, n, k = size(rng, 1, 512), size(rng, 1, 1500), size(rng, 3, 1500)
    batch = () if rng.random() < 0.7 else (size(rng, 2, 12),)
    if batch:
        m, n, k = min(m, 200), min(n, 300), min(k, 300)
    a, b = floats(rng, *batch, m, k), floats(rng, *batch, k, n)
    return Drawn("MatMul", (a,), (b,)) if rng.random() < 0.6 else Drawn("MatMul", (a, b))


def gemm(rng: np.random.Generator) -> Drawn:
    m, n, k = size(rng, 1, 256), size(rng, 8, 1000), size(rng, 8, 1000)
    return Drawn("Gemm", (floats(rng, m, k),), (floats(rng, n, k), floats(rng, n)), {"transB": 1})


def conv(rng: np.random.Generator) -> Drawn:
    groups = int(rng.choice([1, 1, 1, 1, 2, 4, 8]))
    channels = int(rng.choice([1, 3, size(rng, 4, 300), size(rng, 4, 300), size(rng, 4, 300)]))
    channels = -(-channels // groups) * groups
    out = -(-size(rng, 4, 300) // groups) * groups
    kernel = int(rng.choice([1, 1, 2, 3, 3, 3, 5, 7]))
    stride, dilation = int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([1, 1, 1, 2]))
    side = size(rng, 7, int(min(112, 900 / math.sqrt(channels))))
    return _convolution(rng, (side, side), channels, out, kernel, stride, dilation, groups)


def _convolution(
    rng: np.random.Generator,
    space: tuple[int, ...],
    channels: int,
    out: int,
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
) -> Drawn:
    dims = len(space)
    pad = (kernel - 1) * dilation // 2
    constants = (floats(rng, out, channels // groups, *([kernel] * dims)), floats(rng, out))
    space = tuple(max(side, (kernel - 1) * dilation + 1) for side in space)
    attributes = {
        "kernel_shape": [kernel] * dims, "pads": [pad] * 2 * dims, "strides": [stride] * dims,
        "dilations": [dilation] * dims, "group": groups,
    }  # fmt: skip
    return Drawn("Conv", (floats(rng, 1, channels, *space),), constants, attributes)


def conv1d(rng: np.random.Generator) -> Drawn:
    channels, out = size(rng, 1, 256), size(rng, 8, 256)
    kernel, stride = int(rng.choice([1, 3, 5, 9, 15])), int(rng.choice([1, 1, 2]))
    dilation = int(rng.choice([1, 1, 2, 4]))
    return _convolution(rng, (size(rng, 50, 2000),), channels, out, kernel, stride, dilation, 1)


def conv3d(rng: np.random.Generator) -> Drawn:
    channels, out, side = size(rng, 1, 48), size(rng, 8, 64), size(rng, 7, 20)
    kernel, stride = int(rng.choice([1, 3, 3])), int(rng.choice([1, 1, 2]))
    return _convolution(rng, (size(rng, 4, 12), side, side), channels, out, kernel, stride, 1, 1)


def depthwise(rng: np.random.Generator) -> Drawn:
    channels, side = size(rng, 3, 500), size(rng, 7, 80)
    kernel, stride = int(rng.choice([3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
    return _convolution(rng, (side, side), channels, channels, kernel, stride, 1, channels)


def conv_transpose(rng: np.random.Generator) -> Drawn:
    channels, out, side = size(rng, 4, 128), size(rng, 4, 128), size(rng, 4, 40)
    kernel, stride = [(2, 2), (3, 1), (4, 2), (3, 2)][int(rng.integers(4))]
    return Drawn(
        "ConvTranspose", (floats(rng, 1, channels, side, side),),
        (floats(rng, channels, out, kernel, kernel),),
        {"kernel_shape": [kernel] * 2, "strides": [stride] * 2},
    )  # fmt: skip


def pool(rng: np.random.Generator) -> Drawn:
    operator = str(rng.choice(["MaxPool", "AveragePool"]))
    kernel, stride = int(rng.choice([2, 3, 3, 5, 7])), int(rng.choice([1, 2, 2, 3]))
    channels, side = size(rng, 3, 300), size(rng, 9, 112)
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    if rng.random() < 0.5:
        attributes["pads"] = [kernel // 2] * 4
    return Drawn(operator, (floats(rng, 1, channels, side, side),), (), attributes)


def global_pool(rng: np.random.Generator) -> Drawn:
    operator = str(rng.choice(["GlobalAveragePool", "GlobalMaxPool"]))
    side = size(rng, 5, 56)
    return Drawn(operator, (floats(rng, 1, size(rng, 8, 1024), side, side),))


def reduction(rng: np.random.Generator) -> Drawn:
    kinds = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp",
             "ReduceProd", "ReduceSumSquare"]  # fmt: skip
    shape = several(rng, int(rng.integers(2, 5)), 600_000)
    count = int(rng.integers(1, len(shape)))
    axes = np.sort(rng.choice(len(shape), count, replace=False)).astype(np.int64)
    keeps = {"keepdims": int(rng.integers(2))}
    return Drawn(str(rng.choice(kinds)), (floats(rng, *shape),), (axes,), keeps)


def softmax(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 5)), 300_000)
    axis = -1 if rng.random() < 0.7 else int(rng.integers(len(shape)))
    operator = str(rng.choice(["Softmax", "Softmax", "LogSoftmax"]))
    return Drawn(operator, (floats(rng, *shape),), (), {"axis": axis})


def normalisation(rng: np.random.Generator) -> Drawn:
    rows, columns = size(rng, 1, 1000), size(rng, 10, 1500)
    constants = floats(rng, columns), floats(rng, columns)
    return Drawn("LayerNormalization", (floats(rng, rows, columns),), constants, {"axis": -1})


def instance_norm(rng: np.random.Generator) -> Drawn:
    channels, side = size(rng, 3, 128), size(rng, 5, 64)
    scales = floats(rng, channels), floats(rng, channels)
    return Drawn("InstanceNormalization", (floats(rng, 2, channels, side, side),), scales)


def batch_norm(rng: np.random.Generator) -> Drawn:
    channels, side = size(rng, 3, 256), size(rng, 5, 64)
    parts = [floats(rng, channels) for _ in range(3)]
    constants = (*parts, np.abs(floats(rng, channels)) + np.float32(0.1))
    return Drawn("BatchNormalization", (floats(rng, 1, channels, side, side),), constants)


def transpose(rng: np.random.Generator) -> Drawn:
    dims = int(rng.integers(2, 6))
    order = rng.permutation(dims)
    if np.array_equal(order, np.arange(dims)):
        order = order[::-1]
    shape = several(rng, dims, 800_000)
    return Drawn("Transpose", (floats(rng, *shape),), (), {"perm": [int(i) for i in order]})


def gather(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 4)), 500_000)
    axis = int(rng.integers(len(shape)))
    places = rng.integers(0, shape[axis], several(rng, int(rng.integers(1, 3)), 200))
    return Drawn("Gather", (floats(rng, *shape), places), (), {"axis": axis})


def gather_elements(rng: np.random.Generator) -> Drawn:
    shape = several(rng, 2, 200_000)
    axis = int(rng.integers(2))
    return Drawn(
        "GatherElements", (floats(rng, *shape), rng.integers(0, shape[axis], shape)), (),
        {"axis": axis},
    )  # fmt: skip


def concat(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 5)), 200_000)
    axis = int(rng.integers(len(shape)))
    parts = []
    for _ in range(int(rng.integers(2, 5))):
        part = list(shape)
        part[axis] = size(rng, 1, 2 * shape[axis])
        parts.append(floats(rng, *part))
    return Drawn("Concat", tuple(parts), (), {"axis": axis})


def cut(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 5)), 600_000)
    axes = np.arange(len(shape), dtype=np.int64)
    starts = np.array([rng.integers(0, max(1, n // 2)) for n in shape], np.int64)
    ends = np.array([rng.integers(s + 1, n + 1) for s, n in zip(starts, shape, strict=True)])
    steps = rng.choice([1, 1, 2], len(shape)).astype(np.int64)
    return Drawn("Slice", (floats(rng, *shape),), (starts, ends, axes, steps))


def pad(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 5)), 300_000)
    least = min(3, min(shape) - 1)
    widths = rng.integers(0, least + 1, 2 * len(shape)).astype(np.int64)
    mode = str(rng.choice(["constant", "reflect", "edge"]))
    return Drawn("Pad", (floats(rng, *shape),), (widths,), {"mode": mode})


def resize(rng: np.random.Generator) -> Drawn:
    channels, side = size(rng, 1, 100), size(rng, 7, 64)
    scale = float(rng.choice([0.5, 1.5, 2.0, 3.0]))
    scales = np.array([1, 1, scale, scale], np.float32)
    mode = str(rng.choice(["nearest", "linear", "cubic"]))
    attributes = {"mode": mode}
    if mode == "nearest":
        attributes["coordinate_transformation_mode"] = "asymmetric"
        attributes["nearest_mode"] = "floor"
    return Drawn("Resize", (floats(rng, 1, channels, side, side),), (scales,), attributes)


def unary(rng: np.random.Generator) -> Drawn:
    kinds = ["Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Sqrt", "Softplus", "HardSwish", "Elu",
             "Abs", "Sin", "LeakyRelu", "Log", "Floor", "Neg", "Reciprocal"]  # fmt: skip
    values = np.abs(floats(rng, *several(rng, int(rng.integers(1, 4)), 500_000)))
    return Drawn(str(rng.choice(kinds)), (values,))


def binary(rng: np.random.Generator) -> Drawn:
    kinds = ["Add", "Mul", "Sub", "Div", "Max", "Pow", "Greater"]
    shape = several(rng, int(rng.integers(2, 5)), 400_000)
    other = [1 if rng.random() < 0.4 else extent for extent in shape]
    first = int(rng.integers(len(shape))) if rng.random() < 0.4 else 0
    values = np.abs(floats(rng, *shape)), np.abs(floats(rng, *other[first:]))
    return Drawn(str(rng.choice(kinds)), values)


def where(rng: np.random.Generator) -> Drawn:
    shape = several(rng, 3, 400_000)
    condition = rng.random(shape[1:] if rng.random() < 0.5 else shape) < 0.5
    return Drawn("Where", (condition, floats(rng, *shape), floats(rng, 1, 1, shape[-1])))


def running_sum(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(1, 4)), 300_000)
    axis = np.array(rng.integers(len(shape)), np.int64)
    return Drawn("CumSum", (floats(rng, *shape),), (axis,))


def top(rng: np.random.Generator) -> Drawn:
    shape = size(rng, 1, 200), size(rng, 10, 2000)
    count = np.array([size(rng, 1, min(50, shape[1]))], np.int64)
    return Drawn("TopK", (floats(rng, *shape),), (count,), {"axis": -1})


def best_place(rng: np.random.Generator) -> Drawn:
    shape = several(rng, int(rng.integers(2, 5)), 400_000)
    attributes = {"axis": int(rng.integers(len(shape))), "keepdims": 0}
    return Drawn(str(rng.choice(["ArgMax", "ArgMin"])), (floats(rng, *shape),), (), attributes)


def expand(rng: np.random.Generator) -> Drawn:
    shape = several(rng, 3, 500_000)
    own = [1 if rng.random() < 0.5 else extent for extent in shape]
    return Drawn("Expand", (floats(rng, *own),), (np.array(shape, np.int64),))


def cast(rng: np.random.Generator) -> Drawn:
    kind = int(rng.choice([onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32,
                           onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE]))  # fmt: skip
    return Drawn("Cast", (floats(rng, *several(rng, 2, 400_000)),), (), {"to": kind})


def depth_to_space(rng: np.random.Generator) -> Drawn:
    block, channels, side = int(rng.choice([2, 3, 4])), size(rng, 1, 32), size(rng, 7, 48)
    values = floats(rng, 1, channels * block**2, side, side)
    mode = str(rng.choice(["DCR", "CRD"]))
    return Drawn("DepthToSpace", (values,), (), {"blocksize": block, "mode": mode})


KINDS: tuple[Kind, ...] = (
    matmul, conv, matmul, conv, depthwise, conv1d, conv3d, gemm, pool, reduction, softmax,
    normalisation, transpose, gather, concat, resize, unary, binary, running_sum, top, best_place,
    cut, pad, where, global_pool, conv_transpose, instance_norm, batch_norm, gather_elements,
    expand, cast, depth_to_space,
)  # fmt: skip
"""Drawn in turn, so that every count of operators has all kinds alike."""


def measure(drawn: Drawn, folder: Path, seconds: float, peers: tuple[str, ...]) -> Comparison:
    """Compile one operator untuned, and time it against its peers."""
    path = folder / "model.onnx"
    onnx.save(drawn.model(), str(path))
    executable = tilesmith.compile(path, database=None, threads=1, packs=["none"])
    inputs = {f"x{number}": array for number, array in enumerate(drawn.inputs)}
    return compare(executable, inputs, peers, path, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a regular expression of what is measured")
    parser.add_argument("--first", type=int, default=0, help="number of the first that counts")
    parser.add_argument("--seconds-each", type=float, default=0.6, help="to measure an operator")
    parser.add_argument("--against", default="onnxruntime")
    parser.add_argument("--json", help="file to which ratios are written")
    asked = parser.parse_args()
    rows: list[tuple[str, float, float, float | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.first, asked.count):
            rng = np.random.default_rng([asked.seed, number])
            kind = KINDS[number % len(KINDS)]
            drawn = kind(rng)
            if not re.search(asked.only, f"{kind.__name__} {drawn.words}"):
                continue
            try:
                result = measure(
                    drawn, Path(folder), asked.seconds_each, tuple(asked.against.split(","))
                )
            except tilesmith.TilesmithError as refused:
                note(f"{number} {drawn.words}: {refused}")
                continue
            fastest = min(timing.median_ms for timing in result.peers.values())
            ratio = result.own.median_ms / fastest
            note(f"{number:4d} {ratio:6.3f} {result.own.median_ms * 1e3:9.1f} us  {drawn.words}")
            rows.append((f"{number} {drawn.words}", ratio, result.own.median_ms, fastest))
    return report(rows, asked.json)


def report(rows: list[tuple[str, float, float, float | None]], written: str | None) -> int:
    """Print the worst first and each operator's geometric mean; 1 if one is above the limit."""
    rows.sort(key=lambda row: -row[1])
    if written:
        Path(written).write_text(json.dumps(rows, indent=1))
    above = [row for row in rows if row[1] > LIMIT]
    print(table(("operator", "ratio", "tilesmith ms", "peer ms"), above or rows[:5]))
    logs: dict[str, list[float]] = {}
    for row in rows:
        logs.setdefault(row[0].split()[1], []).append(math.log(row[1]))
    means = {operator: math.exp(sum(own) / len(own)) for operator, own in sorted(logs.items())}
    print("  ".join(f"{operator} {mean:.2f}" for operator, mean in means.items()))
    mean = math.exp(sum(math.log(row[1]) for row in rows) / max(1, len(rows)))
    print(f"{len(rows)} operators, geometric mean {mean:.3f}, {len(above)} above {LIMIT}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
