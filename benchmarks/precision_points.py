"""Precisions chosen for each layer, beside onnxruntime's static quantisation of the same model.

    python benchmarks/precision_points.py MODEL.onnx ... [--folder build/precisions] [--samples 4]

Both are given the same random samples to calibrate with, and judged on others: the error is the
norm of what outputs differ by from fp32, by their norm. Weights of published models mean something,
random ones do not: then the error says how roundings add up, and nothing of accuracy. Theirs is
`quantize_static` (pairs, uint8 activations, int8 weights with a scale for each channel). Ours are
the plans that `ts.quantize(minimise="latency")` measured with the error of theirs as its budget.

Printed for each model, of one run on one thread: onnxruntime's error and milliseconds (its int8
file in onnxruntime), our fp32 model's in turns with it; at most at its error our fastest plan, and
that by onnxruntime's time; in at most its time our most exact plan's error, and that by its error.
Plans are timed in turns with our fp32 model, which both races have in common. nan: no plan is so
exact, or so fast.
"""

import argparse
import logging
import math
import os
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnx
    from onnx import version_converter
    from onnxruntime import quantization
    from onnxruntime.quantization import CalibrationDataReader, QuantType

    import tilesmith
    from tilesmith.jobs.measures.output_errors import accuracy
    from tilesmith.jobs.measures.peers import load_peer
    from tilesmith.jobs.measures.timing import interleave, pinned
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

OPSET = 17
HELD_OUT = 3

Arrays = dict[str, Any]


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Samples as onnxruntime takes them."""

    def __init__(self, samples: list[Arrays]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Arrays | None:
        return next(self._samples, None)


def samples_of(model: onnx.ModelProto, count: int) -> list[Arrays]:
    rng = np.random.default_rng(11)
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = {
        value.name: [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.name not in weights
    }
    return [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def theirs(source: Path, folder: Path, samples: list[Arrays]) -> Path:
    """onnxruntime's int8 file, made where it is missing."""
    result = folder / f"{source.stem}.int8.onnx"
    if not result.exists():
        model = onnx.load(source)
        if model.opset_import[0].version < OPSET:  # scales along an axis are of opset 13 on
            model = version_converter.convert_version(model, OPSET)
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in weights]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        ready = folder / f"{source.stem}.ready.onnx"
        onnx.save(model, ready)
        quantization.quantize_static(
            ready, result, Samples(samples), per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        ready.unlink()
    return result


def measure(source: Path, folder: Path, count: int, seconds: float) -> tuple[float, float]:
    """Print a line; our time by theirs at their error, and our error by theirs in their time."""
    samples = samples_of(onnx.load(source), count + HELD_OUT)
    path = theirs(source, folder, samples[:count])
    plain = tilesmith.compile(source)
    inputs = {name: array.copy() for name, array in samples[0].items()}
    peer = load_peer("onnxruntime", path, inputs, 1)
    expected = [plain.run(sample) for sample in samples[count:]]

    def run(sample: Arrays) -> Arrays:
        for name, array in sample.items():
            np.copyto(inputs[name], array)
        peer.infer()
        return dict(zip(expected[0], peer.outputs().values(), strict=True))

    error = accuracy(run, samples[count:], expected).error
    with pinned(1):
        race = interleave({"theirs": peer.infer, "fp32": plain.bind(inputs).run}, seconds)
    ort_ms, fp32_ms = race["theirs"].median_ms, race["fp32"].median_ms
    chosen = tilesmith.quantize(
        source, samples, budget=error, minimise="latency", samples=count + HELD_OUT,
        database=folder / f"{source.stem}.db",
    )  # fmt: skip
    report: Any = chosen.report.precisions
    points = [
        (max(point.error, point.held_out), point.ms / report.fp32_ms * fp32_ms)
        for point in report.front
    ]
    fast = min((ms for e, ms in points if e <= error), default=math.nan)
    exact = min((e for e, ms in points if ms <= ort_ms), default=math.nan)
    print(
        f"{source.stem:14} {error:9.4f} {ort_ms:9.3f} {fp32_ms:9.3f} {fast:9.3f} "
        f"{fast / ort_ms:6.2f} {exact:9.4f} {exact / error:6.2f}",
        flush=True,
    )
    return fast / ort_ms, exact / error


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--folder", type=Path, default=Path("build/precisions"))
    parser.add_argument("--samples", type=int, default=4, help="that calibrate")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each race")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{'':14} {'error':>9} {'onnxrt ms':>9} {'fp32 ms':>9} {'ours ms':>9} {'ratio':>6} "
        f"{'our error':>9} {'ratio':>6}"
    )
    ratios = [
        measure(source, arguments.folder, arguments.samples, arguments.seconds)
        for source in arguments.models
    ]
    for what, column in (("time at their error", 0), ("error in their time", 1)):
        known = [ratio[column] for ratio in ratios if math.isfinite(ratio[column])]
        if known:
            mean = math.exp(float(np.mean(np.log(known))))
            print(f"{what}: {mean:.3f} in the geometric mean of {len(known)}")


if __name__ == "__main__":
    main()
