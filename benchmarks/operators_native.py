"""Operators beyond convolutions and products of images against ONNX Runtime, in turns, untuned.

    python benchmarks/operators_native.py [--only TEXT ...] [--runs 30] [--json]

Each is a model of one node, compiled with default schedules; inputs and outputs are plain, so that
conversions of layouts are inside the figure. Both run fp32 on one pinned core; a figure is the
median of runs that alternate. "apart" is the largest difference over the largest value, or "no"
where whole numbers differ; "host" says whether the node ran as compiled loops between kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

import tilesmith
from tilesmith.display.output import note, table

Array = NDArray[Any]
Make = Callable[[np.random.Generator], Array]


def normal(*shape: int, scale: float = 1.0) -> Make:
    """Normal numbers."""
    return lambda rng: (rng.standard_normal(shape) * scale).astype(np.float32)


def given(value: Any, dtype: Any = np.int64) -> Make:
    """What is written."""
    return lambda rng: np.array(value, dtype)


def grid(size: int) -> Make:
    """Places of a size x size image, each moved by about a pixel."""

    def make(rng: np.random.Generator) -> Array:
        places = np.linspace(-1, 1, size)
        still = np.stack(np.meshgrid(places, places), axis=-1)[None]
        moved = still + rng.standard_normal(still.shape) * 2 / size
        return moved.astype(np.float32)

    return make


def boxes(count: int, extent: float, largest: float) -> Make:
    """Corners (count, 4) of boxes."""

    def make(rng: np.random.Generator) -> Array:
        corners = rng.uniform(0, extent - largest, (count, 2))
        sizes = rng.uniform(largest / 10, largest, (count, 2))
        return np.concatenate([corners, corners + sizes], axis=1).astype(np.float32)

    return make


def batched(make: Make) -> Make:
    return lambda rng: make(rng)[None]


def scores(classes: int, count: int) -> Make:
    """Shares in (0, 1), most of them small."""
    return lambda rng: (rng.uniform(0, 1, (1, classes, count)) ** 4).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A node: ONNX's text of inputs and of the node, and what its inputs and weights are."""

    inputs: str
    node: str
    values: Mapping[str, Make]
    weights: Mapping[str, Make] = field(default_factory=dict)
    output: str = "float"

    def model(self) -> onnx.ModelProto:
        graph = parser.parse_graph(f"g ({self.inputs}) => ({self.output} y) {{ y = {self.node} }}")
        rng = np.random.default_rng(0)
        for name, make in self.weights.items():
            graph.initializer.append(numpy_helper.from_array(make(rng), name))
        graph.output[0].type.tensor_type.ClearField("shape")
        opsets = [helper.make_opsetid("", 20)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


VOLUME = (1, 64, 8, 28, 28)
IMAGE = (1, 64, 56, 56)
REGIONS = "float[1, 256, 50, 68] x, float[100, 4] q, int64[100] b"
BOXES = {"x": batched(boxes(8400, 640, 120)), "p": scores(80, 8400)}


def one(node: str, shape: Sequence[int], **weights: Make) -> Case:
    """A node of one input, x."""
    return Case(f"float{list(shape)} x", node, {"x": normal(*shape)}, weights)


def filters(*shape: int) -> Make:
    return normal(*shape, scale=0.1)


def region_case(attributes: str) -> Case:
    node = f"RoiAlign<output_height=7, output_width=7, spatial_scale=0.0625{attributes}>(x, q, b)"
    values = {"x": normal(1, 256, 50, 68), "q": boxes(100, 800, 400), "b": given([0] * 100)}
    return Case(REGIONS, node, values)


def boxes_case(most: int, threshold: float) -> Case:
    limits = {"m": given([most]), "o": given([0.5], np.float32)}
    limits["t"] = given([threshold], np.float32)
    node = "NonMaxSuppression(x, p, m, o, t)"
    shapes = "float[1, 8400, 4] x, float[1, 80, 8400] p"
    return Case(shapes, node, BOXES, limits, "int64")


def grid_case(channels: int, size: int, mode: str) -> Case:
    shapes = f"float[1, {channels}, {size}, {size}] x, float[1, {size}, {size}, 2] q"
    values = {"x": normal(1, channels, size, size), "q": grid(size)}
    return Case(shapes, f'GridSample<mode="{mode}">(x, q)', values)


def resize_case(attributes: str, scale: float) -> Case:
    scales = given([1, 1, scale, scale], np.float32)
    return one(f"Resize<{attributes}>(x, , s)", (1, 16, 112, 112), s=scales)


DEFORMED = Case(
    "float[1, 64, 28, 28] x, float[1, 18, 28, 28] o, float[1, 9, 28, 28] k",
    "DeformConv<pads=[1, 1, 1, 1]>(x, w, o, , k)",
    {"x": normal(1, 64, 28, 28), "o": normal(1, 18, 28, 28), "k": normal(1, 9, 28, 28)},
    {"w": filters(64, 64, 3, 3)},
)
AFFINE = Case(
    "float[8, 2, 3] t", "AffineGrid(t, z)", {"t": normal(8, 2, 3)}, {"z": given([8, 3, 128, 128])}
)
CUBE = "pads=[1, 1, 1, 1, 1, 1]"
CASES: dict[str, Case] = {
    "Conv 1-D 64->64 2000": one(
        "Conv<pads=[1, 1]>(x, w)", (1, 64, 2000), w=filters(64, 64, 3)
    ),
    "MaxPool 1-D 64 2000": one("MaxPool<kernel_shape=[3], strides=[2]>(x)", (1, 64, 2000)),
    "Conv 3-D 3x3x3 64->64": one(f"Conv<{CUBE}>(x, w)", VOLUME, w=filters(64, 64, 3, 3, 3)),
    "Conv 3-D stride 2": one(
        f"Conv<{CUBE}, strides=[2, 2, 2]>(x, w)", VOLUME, w=filters(128, 64, 3, 3, 3)
    ),
    "Conv 3-D 1x3x3": one(
        "Conv<pads=[0, 1, 1, 0, 1, 1]>(x, w)", VOLUME, w=filters(64, 64, 1, 3, 3)
    ),
    "Conv 3-D 3x1x1": one(
        "Conv<pads=[1, 0, 0, 1, 0, 0]>(x, w)", VOLUME, w=filters(64, 64, 3, 1, 1)
    ),
    "Conv 3-D depthwise": one(
        f"Conv<{CUBE}, group=64>(x, w)", VOLUME, w=filters(64, 1, 3, 3, 3)
    ),
    "Conv 3-D 3x7x7 3->64": one(
        "Conv<pads=[1, 3, 3, 1, 3, 3], strides=[1, 2, 2]>(x, w)", (1, 3, 8, 112, 112),
        w=filters(64, 3, 3, 7, 7),
    ),
    "ConvTranspose 3-D": one(
        "ConvTranspose<strides=[2, 2, 2]>(x, w)", (1, 64, 8, 14, 14), w=filters(64, 32, 2, 2, 2)
    ),
    "MaxPool 3-D": one(
        f"MaxPool<kernel_shape=[3, 3, 3], strides=[2, 2, 2], {CUBE}>(x)", (1, 64, 8, 56, 56)
    ),
    "AveragePool 3-D": one(
        "AveragePool<kernel_shape=[2, 2, 2], strides=[2, 2, 2]>(x)", (1, 64, 8, 56, 56)
    ),
    "GlobalAveragePool 3-D": one("GlobalAveragePool(x)", VOLUME),
    "GridSample 64 64x64": grid_case(64, 64, "linear"),
    "GridSample 64 nearest": grid_case(64, 64, "nearest"),
    "GridSample 64 cubic": grid_case(64, 64, "cubic"),
    "GridSample 3 256x256": grid_case(3, 256, "linear"),
    "GridSample 3 cubic": grid_case(3, 256, "cubic"),
    "GridSample 3-D": Case(
        "float[1, 16, 16, 32, 32] x, float[1, 16, 32, 32, 3] q", "GridSample(x, q)",
        {"x": normal(1, 16, 16, 32, 32), "q": normal(1, 16, 32, 32, 3, scale=0.5)},
    ),
    "AffineGrid 8x128x128": AFFINE,
    "RoiAlign 2 samples": region_case(", sampling_ratio=2"),
    "RoiAlign by pixels": region_case(""),
    "DeformConv 3x3 64->64": DEFORMED,
    "NonMaxSuppression 0.05": boxes_case(100, 0.05),
    "NonMaxSuppression 0.9": boxes_case(300, 0.9),
    "Resize cubic x2": resize_case('mode="cubic"', 2.0),
    "Resize antialias /2": resize_case('mode="linear", antialias=1', 0.5),
    "Resize nearest x0.7": resize_case('mode="nearest"', 0.7),
    "LpPool 3x3": one(
        "LpPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x)", IMAGE
    ),
    "GlobalLpPool": one("GlobalLpPool(x)", IMAGE),
    "MeanVarianceNormal.": one("MeanVarianceNormalization(x)", IMAGE),
    "Col2Im 3x3": one(
        "Col2Im<pads=[1, 1, 1, 1]>(x, z, k)", (1, 288, 3136), z=given([56, 56]), k=given([3, 3])
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """Medians in milliseconds, and how far results are apart."""

    ours: float
    theirs: float
    apart: float | None
    host: tuple[str, ...]

    @property
    def row(self) -> tuple[str, ...]:
        apart = "no" if self.apart is None else f"{self.apart:.1e}"
        ratio = f"{self.ours / self.theirs:.2f}"
        host = "host" if self.host else ""
        return f"{self.ours:.3f}", f"{self.theirs:.3f}", ratio, apart, host


def measured(case: Case, runs: int) -> Timed:
    """Both on the same inputs, in turns."""
    model, rng = case.model(), np.random.default_rng(1)
    inputs = {name: make(rng) for name, make in case.values.items()}
    executable = tilesmith.compile(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    found, (wanted,) = executable.run(inputs)["y"], session.run(None, inputs)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(runs):
        for times, run in (
            (ours, lambda: executable.run(inputs)),
            (theirs, lambda: session.run(None, inputs)),
        ):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
    medians = (float(np.median(times)) * 1e3 for times in (ours, theirs))
    return Timed(*medians, _apart(found, wanted), executable.report.host_nodes)


def _apart(found: Array, wanted: Array) -> float | None:
    if found.shape != wanted.shape:
        return None
    if wanted.dtype.kind == "i":
        return 0.0 if np.array_equal(found, wanted) else None
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def main(arguments: Sequence[str] | None = None) -> int:
    parsing = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parsing.add_argument("--only", nargs="*", default=[""], help="parts of names")
    parsing.add_argument("--runs", type=int, default=30, help="of each, in turns")
    parsing.add_argument("--json", action="store_true", help="print JSON")
    options = parsing.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    chosen = {n: c for n, c in CASES.items() if any(part in n for part in options.only)}
    if not chosen:
        print(f"no case is named like {' '.join(options.only)}; {', '.join(CASES)} are")
        return 2
    results: dict[str, Timed] = {}
    for name, case in chosen.items():
        note(f"{name} ...")
        results[name] = measured(case, options.runs)
    if options.json:
        rows = {name: vars(timed) for name, timed in results.items()}
        print(json.dumps(rows, indent=2))
        return 0
    headings = ("operator", "ms", "onnxruntime ms", "ratio", "apart", "")
    print(table(headings, [(name, *timed.row) for name, timed in results.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
