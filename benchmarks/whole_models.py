"""Whole models against ONNX Runtime and OpenVINO: tune, compile, and time in turns.

    pip install 'tilesmith[peers]'
    python benchmarks/whole_models.py [--only NAME ...] [--minutes-each 5] [--models FOLDER]
    [--json]

The models are those of `benchmarks/models.py`; where FOLDER holds one that
`benchmarks/export_models.py` exported (MobileNetV2, the encoder), that one is taken. Every model is
tuned from an empty database. All runtimes run fp32 on one pinned core, in turns within one run. The
error is max|a - b| / max|b| against ONNX Runtime, of the model without its final softmax, which
would hide it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import onnx
from models import write_models
from peers import meets, report

import tilesmith
from tilesmith.display.output import note
from tilesmith.jobs.comparison import compare
from tilesmith.jobs.compiling import random_inputs
from tilesmith.jobs.reports import Comparison

LIMITS: dict[str, float | None] = {
    "resnet50": 0.88,
    "squeezenet": 0.8,
    "mobilenet_v2": 1.15,
    "encoder": 1.15,
    "mlp": 1.15,
}


def model_file(name: str, folder: Path, exported: Path) -> Path:
    """The ONNX file of a model: the exported one if there is one, else made here."""
    path = exported / f"{name}.onnx"
    return path if path.exists() else write_models(folder, [name])[0]


def without_final_softmax(path: Path) -> Path:
    """The model cut before a final softmax (and reshapes after it), or the model itself."""
    model = onnx.load(str(path))
    last = model.graph.node[-1]
    if last.op_type != "Softmax":
        return path
    output = model.graph.output[0]
    node = model.graph.node.pop()
    output.name = node.input[0]
    output.type.tensor_type.ClearField("shape")
    cut = path.with_name(f"{path.stem}_logits.onnx")
    onnx.save(model, str(cut))
    return cut


def measure(
    path: Path, database: Path, minutes: float, peers: tuple[str, ...], threads: int
) -> Comparison:
    """Tune, compile and time one model; its error is that of the logits."""
    report = tilesmith.tune(path, database=database, time_limit=60 * minutes, threads=threads)
    note(
        f"  {report.trials} trials in {report.wall_s:.0f} s, estimated "
        f"{report.default_us or 0:.0f} us -> {report.best_us or 0:.0f} us"
    )
    executable = tilesmith.compile(path, database=database, threads=threads)
    timed = compare(executable, random_inputs(executable), peers, path, budget_s=10.0)
    cut = without_final_softmax(path)
    if cut == path:
        return timed
    logits = tilesmith.compile(cut, database=database, threads=threads)
    checked = compare(logits, random_inputs(logits), peers[:1], cut, budget_s=0.1)
    return replace(timed, max_abs_err=checked.max_abs_err, max_rel_err=checked.max_rel_err)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--minutes-each", type=float, default=5.0, help="tuning time per model")
    parser.add_argument("--models", type=Path, default=Path("models"), help="exported models")
    parser.add_argument("--keep", type=Path, help="folder for models and databases")
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    results: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            path = model_file(name, folder, arguments.models)
            note(f"{name} ...")
            results[name] = measure(
                path, folder / f"{name}.db", arguments.minutes_each,
                tuple(arguments.against.split(",")), arguments.threads,
            )  # fmt: skip
            note(f"  ratio {results[name].ratio or 0:.3f}")
    if arguments.json:
        print(json.dumps({name: result.to_json() for name, result in results.items()}, indent=2))
    else:
        print(report(results, LIMITS))
    return 0 if all(meets(result.ratio, LIMITS[n]) for n, result in results.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
