"""Whole models against ONNX Runtime, OpenVINO, Inductor and IREE: tune, compile, time in turns.

    pip install 'tilesmith[peers]'
    python -m benchmarks.export_models --into models
    python benchmarks/whole_models.py [--only NAME ...] [--seconds 180] [--threads 1,2]
    [--models FOLDER] [--keep FOLDER] [--minutes M] [--json]
    [--against onnxruntime,openvino,iree,inductor-default,inductor-max-autotune]

The models are those of `benchmarks/models.py` (all light networks of the onnx package among them)
and whatever `benchmarks/export_models.py` exported to FOLDER; where both have one, the exported one
is taken. Every model is tuned from an empty database, for one thread first. All runtimes run fp32
on the same pinned cores, in turns within one run. The error is max|a - b| / max|b| against ONNX
Runtime, of the model without its final softmax, which would hide it.

IREE wants the extra `iree`. Inductor wants the extra `models` and a C++ compiler; it takes part
where `benchmarks/export_models.py` made the model, and this is run as a module (by its path,
`benchmarks/kernels.py` would hide a package that transformers uses). A peer that cannot run a model
is named and left out.

With --keep, what is measured is kept as JSON beside the databases and not measured again: a run
that was stopped (or ended by --minutes) goes on where it was. The last lines are the geometric mean
of the ratios and the worst, for each number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

import tilesmith
from tilesmith.display.output import note, table
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.evaluation.benching import compare
from tilesmith.jobs.measures.peers import PEERS, Arrays, load_peer
from tilesmith.search_space.support.errors import ModelError

sys.path.append(str(Path(__file__).parents[1]))  # run by its path, it has its own folder alone
from benchmarks.models import MODELS, write_models

LIMITS: dict[str, float] = {
    "resnet50": 0.88,
    "squeezenet": 0.8,
    "mobilenet_v2": 1.0,
    "encoder": 1.0,
    "mlp": 1.0,
}
"""Largest ratio of times that is good enough; others: 1."""


def model_file(name: str, folder: Path, exported: Path) -> Path:
    """The ONNX file of a model: the exported one if there is one, else made here."""
    path = exported / f"{name}.onnx"
    if path.exists():
        return path
    made = folder / f"{name}.onnx"
    return made if made.exists() else write_models(folder, [name])[0]


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
    path: Path, database: Path, seconds: float, peers: tuple[str, ...], threads: int
) -> dict[str, Any]:
    """Tune, compile and time one model; its error is that of the logits."""
    report = tilesmith.tune(path, database=database, time_limit=seconds, threads=threads)
    executable = tilesmith.compile(path, database=database, threads=threads)
    inputs = random_inputs(executable)
    peers = tuple(peer for peer in peers if can_run(peer, path, inputs, threads))
    timed = compare(executable, inputs, peers, path, budget_s=10.0)
    checked, cut = timed, without_final_softmax(path)
    if cut != path:
        logits = tilesmith.compile(cut, database=database, threads=threads)
        checked = compare(logits, random_inputs(logits), peers[:1], cut, budget_s=0.1)
    return {
        **timed.to_json(),
        "trials": report.trials,
        "tuning_s": round(report.wall_s, 1),
        "max_rel_err": checked.max_rel_err,
    }


def can_run(peer: str, path: Path, inputs: Arrays, threads: int) -> bool:
    """Whether a peer runs a model; what it does not is said."""
    try:
        load_peer(peer, path, inputs, threads)
    except ModelError as error:
        note(f"  {str(error).splitlines()[0]}")
        return False
    return True


def summary(results: dict[str, dict[str, Any]], peers: tuple[str, ...]) -> str:
    """A table of milliseconds and ratios, then geometric mean and worst of each thread count."""
    rows = [
        (
            name.rpartition(" ")[0],
            found["threads"],
            found["trials"],
            found["median_ms"],
            *(found["peers"].get(peer, {}).get("median_ms") for peer in peers),
            found["ratio"],
            found["max_rel_err"],
        )
        for name, found in results.items()
    ]
    header = ("", "threads", "trials", "tilesmith ms", *(f"{peer} ms" for peer in peers), "ratio",
              "rel error")  # fmt: skip
    lines = [table(header, rows)]
    for threads in sorted({found["threads"] for found in results.values()}):
        ratios = {
            name.rpartition(" ")[0]: found["ratio"]
            for name, found in results.items()
            if found["threads"] == threads and found["ratio"]
        }
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = max(ratios, key=ratios.__getitem__)
            lines.append(
                f"{threads} threads: geometric mean {mean:.3f} of {len(ratios)} models, worst "
                f"{ratios[worst]:.3f} ({worst})"
            )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of models; all by default")
    parser.add_argument("--seconds", type=float, default=180.0, help="tuning per thread count")
    parser.add_argument("--minutes-each", type=float, help="the same in minutes")
    parser.add_argument("--minutes", type=float, help="start no model after so long")
    parser.add_argument("--models", type=Path, default=Path("models"), help="exported models")
    parser.add_argument("--keep", type=Path, help="folder for models, databases and results")
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--threads", default="1", help="thread counts, such as 1,2")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.minutes_each is not None:
        arguments.seconds = 60 * arguments.minutes_each
    return arguments


def main() -> int:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    arguments = parse()
    exported = sorted(path.stem for path in arguments.models.glob("*.onnx"))
    names = arguments.only or list(dict.fromkeys([*MODELS, *exported]))
    peers = tuple(arguments.against.split(","))
    if any(peer.startswith("inductor") for peer in peers):
        from benchmarks.subjects.inductor import INDUCTOR

        PEERS.update(INDUCTOR)
    end = time.monotonic() + 60 * (arguments.minutes or math.inf)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            for threads in map(int, arguments.threads.split(",")):
                kept = folder / f"{name}.{threads}.json"
                if not kept.exists():
                    if time.monotonic() > end:
                        continue
                    note(f"{name}, {threads} threads ...")
                    path = model_file(name, folder, arguments.models)
                    database = folder / f"{name}.db"
                    found = measure(path, database, arguments.seconds, peers, threads)
                    kept.write_text(json.dumps(found, indent=1))
                results[f"{name} {threads}"] = json.loads(kept.read_text())
                note(f"  ratio {results[f'{name} {threads}']['ratio']:.3f}")
    print(json.dumps(results, indent=2) if arguments.json else summary(results, peers))
    missed = [
        name
        for name, found in results.items()
        if found["ratio"] and found["ratio"] > LIMITS.get(name.rpartition(" ")[0], 1.0)
    ]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
