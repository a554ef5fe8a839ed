"""Whole models on trn1, simulated: tuned, compiled to one program, executed functionally.

    python benchmarks/accelerator/whole_models.py [--only NAME ...] [--minutes-each 2]
    [--precision fp32 bf16] [--keep FOLDER] [--json]

The models are those of `benchmarks/models.py`. Each is tuned from an empty database (with
`--minutes-each 0` not at all). Printed are the latency with default and with tuned schedules, the
sum of its operators' rooflines and of their latencies alone, what lies between the tuned latency
and the rooflines, the roofline of the linked model (weights, input and output moved once), the
tensors that stay in SBUF, and the HBM traffic. The error is max|a - b| / max|b| of what the program
computes (without a final softmax, which would hide it) against ONNX Runtime, or onnx.reference
where that is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import write_models

import tilesmith
from tilesmith.display.output import note
from tilesmith.jobs.compilation.compiling import random_inputs

TARGET = "trn1"
LIMITS = {"fp32": 1e-5, "bf16": 2e-2}
COLUMNS = (
    "model", "precision", "default us", "tuned us", "rooflines us", "between us", "alone us",
    "own roofline us", "bound", "resident", "MB moved", "MB saved", "host", "error",
)  # fmt: skip


def without_final_softmax(path: Path) -> Path:
    """The model cut before a final softmax, or the model itself."""
    model = onnx.load(str(path))
    if model.graph.node[-1].op_type != "Softmax":
        return path
    node, output = model.graph.node.pop(), model.graph.output[0]
    output.name = node.input[0]
    output.type.tensor_type.ClearField("shape")
    cut = path.with_name(f"{path.stem}_logits.onnx")
    onnx.save(model, str(cut))
    return cut


def expected(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """The model's outputs by ONNX Runtime, else by onnx.reference."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return list(ReferenceEvaluator(str(path)).run(None, inputs))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def error(path: Path, database: Path | None, precision: str) -> float:
    """Of the compiled program's outputs, executed instruction by instruction."""
    cut = without_final_softmax(path)
    executable = tilesmith.compile(cut, TARGET, database, precision=precision)
    inputs = random_inputs(executable)
    found = executable.run(inputs).values()
    pairs = zip(found, expected(cut, inputs), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def measure(path: Path, database: Path | None, precision: str, minutes: float) -> dict[str, Any]:
    """Everything that is printed of one model."""
    default = tilesmith.simulate(path, TARGET, precision=precision)
    if database is not None:
        tuned = tilesmith.tune(path, TARGET, database, time_limit=60 * minutes, precision=precision)
        note(f"  {tuned.trials} trials in {tuned.wall_s:.0f} s")
    result = tilesmith.simulate(path, TARGET, database, precision=precision)
    found = result.details
    return {
        "model": path.stem,
        "precision": precision,
        "default us": default.latency_us,
        "tuned us": result.latency_us,
        "rooflines us": found["roofline_us"],
        "between us": found["between_us"],
        "alone us": found["kernels_alone_us"],
        "own roofline us": found["model_roofline_us"],
        "bound": result.bound,
        "resident": len(found["resident"]),
        "MB moved": found["bytes_moved"] / 1e6,
        "MB saved": found["bytes_saved"] / 1e6,
        "host": found["host"],
        "error": error(path, database, precision),
        "engines": dict(result.engines),
        "ops": [op.to_json() for op in result.ops],
    }


def row(found: dict[str, Any]) -> str:
    cells = [found[name] for name in COLUMNS]
    texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return f"| {' | '.join(texts)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("mlp", "encoder", "resnet50")
    parser.add_argument("--only", nargs="*", default=names, help="names of benchmarks/models.py")
    parser.add_argument("--minutes-each", type=float, default=2.0, help="tuning time of a model")
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16"], choices=list(LIMITS))
    parser.add_argument("--keep", type=Path, help="folder for models and databases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for path in write_models(folder, list(arguments.only)):
            for precision in arguments.precision:
                note(f"{path.stem} {precision} ...")
                tuned = arguments.minutes_each > 0
                database = folder / f"{path.stem}.db" if tuned else None
                results.append(measure(path, database, precision, arguments.minutes_each))
    if arguments.json:
        print(json.dumps({"models": results}, indent=2))
    else:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        print("\n".join(map(row, results)))
    return 0 if all(found["error"] <= LIMITS[found["precision"]] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
