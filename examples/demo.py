"""The whole job in three minutes: tune ResNet-50 on this CPU, compile it, check it, time it.

    make demo        (or: python examples/demo.py [--seconds 170] [--model resnet50] [--folder
    build/demo])

The network comes out of the installed onnx package; its constant-fill weights are replaced by
seeded random ones. Nothing is downloaded. Everything made stays in the folder, to look at
afterwards:

    tilesmith db top --database build/demo/tuning.db
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilesmith
from tilesmith.display.progress import progress_display
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.peers import load_peer
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.jobs.subjects.light_models import light_model_names, save_light_model
from tilesmith.search_space.support.errors import DependencyError

Arrays = Mapping[str, NDArray[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50", choices=light_model_names())
    parser.add_argument("--seconds", type=float, default=170.0, help="time to tune for")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"))
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    database, artifact = folder / "tuning.db", folder / f"{arguments.model}.tsm"
    for old in folder.glob("tuning.db*"):
        old.unlink()

    model = save_light_model(arguments.model, folder / f"{arguments.model}.onnx")
    print(f"1. {model}: {arguments.model} of the onnx package, with seeded random weights")

    print(f"2. tuning for at most {arguments.seconds:.0f} s; every trial goes into {database}")
    with progress_display() as observer:
        report = tilesmith.tune(
            model, database=database, time_limit=arguments.seconds, observer=observer
        )
    print(f"   {report.trials} trials of {len(report.tasks)} workloads in {report.wall_s:.0f} s")

    default = tilesmith.compile(model, packs=["none"])  # and no database
    tuned = tilesmith.compile(model, database=database)
    tuned.save(artifact)
    print(f"3. compiled into {artifact}")
    compare(model, default, tuned)


def compare(model: Path, default: tilesmith.Executable, tuned: tilesmith.Executable) -> None:
    """Steps 4 and 5: what the tuned model computes, and how long it and the default take."""
    inputs = random_inputs(tuned)
    outputs = tuned.run(inputs)
    reference, name = reference_outputs(model, inputs)
    error = max(
        float(np.abs(outputs[key] - reference[key]).max() / np.abs(reference[key]).max())
        for key in outputs
    )
    print(f"4. largest error against {name}: {error:.2e} (relative to the largest output)")

    with pinned(1):
        timings = interleave(
            {"default": lambda: default.run(inputs), "tuned": lambda: tuned.run(inputs)}
        )
    before, after = timings["default"].median_ms, timings["tuned"].median_ms
    print(
        f"5. latency, one thread: {before:.2f} ms default -> {after:.2f} ms tuned "
        f"({before / after:.2f} times as fast)"
    )


def reference_outputs(model: Path, inputs: Arrays) -> tuple[Arrays, str]:
    """Outputs of ONNX Runtime where it is installed, else of onnx.reference, and which it was."""
    try:
        contender = load_peer("onnxruntime", model, inputs, threads=1)
    except DependencyError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(model))
        values = evaluator.run(None, dict(inputs))
        return dict(zip(evaluator.output_names, values, strict=True)), "onnx.reference"
    return contender.outputs(), "onnxruntime"


if __name__ == "__main__":
    main()
