"""What models take of memory: compiling, loading, running; ours beside onnxruntime's.

    python benchmarks/memory.py gpt2.onnx bert.onnx [--threads 1] [--precisions fp32 bf16 fp16]

Every figure is of a process of its own. Printed are, in MB: the weights in the file (in 16 bits:
as many bytes as they would take in those), those of the
artifact; the peak of resident memory while a model is compiled, all of the process in it; what
loading an artifact and running it once adds to a process that has everything imported (of that,
what is the process's own, and not the file's pages that others share); the same of onnxruntime,
which optimises when it loads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def resident() -> dict[str, float]:
    """MB of this process in memory now, at its peak, and of its own (no pages of files)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {
        line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Vm", "Rss"))
    }
    names = {"now": "VmRSS", "peak": "VmHWM", "own": "RssAnon"}
    return {name: int(found[field]) * 1024 / 1e6 for name, field in names.items()}


def compiled(model: str, artifact: str, threads: int, precision: str) -> dict[str, Any]:
    import onnx

    import tilesmith as ts

    found = ts.compile(model, target="cpu", threads=threads, precision=precision)
    peak = resident()["peak"]
    found.save(artifact)
    weights = onnx.load(model).graph.initializer
    own = sum(
        len(t.raw_data) // (1 + (precision != "fp32" and t.data_type == t.FLOAT)) for t in weights
    )
    report = found.report
    return {
        "peak": peak,
        "weights": own / 1e6,
        "packed": report.constant_bytes / 1e6,
        "arena": report.peak_bytes / 1e6,
    }


def loaded(model: str, artifact: str, threads: int, precision: str) -> dict[str, Any]:
    import tilesmith as ts
    from tilesmith.compiler.runtime.executable import Executable

    warm = _tiny(threads)
    warm(np.zeros(4, np.float32))
    before = resident()
    found = ts.load(artifact)
    assert isinstance(found, Executable)
    found.run({i.name: np.zeros(i.dims, i.dtype) for i in found.inputs})
    after = resident()
    return {name: after[name] - before[name] for name in after}


def _tiny(threads: int) -> Any:
    """A model that loads whatever is loaded once."""
    from onnx import helper, parser

    import tilesmith as ts

    graph = parser.parse_graph("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.tsm"
        ts.compile(model, target="cpu", threads=threads).save(path)
        return ts.load(path)


def theirs(model: str, artifact: str, threads: int, precision: str) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    before = resident()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    session.run(None, {i.name: np.zeros(i.shape, types[i.type]) for i in session.get_inputs()})
    after = resident()
    return {name: after[name] - before[name] for name in after}


JOBS: dict[str, Callable[[str, str, int, str], dict[str, Any]]] = {
    "compiled": compiled, "loaded": loaded, "theirs": theirs
}  # fmt: skip


def apart(job: str, model: Path, artifact: Path, threads: int, precision: str) -> dict[str, Any]:
    """A job in a process of its own."""
    arguments = [sys.executable, __file__, "--job", job, str(model), str(artifact)]
    arguments += ["--threads", str(threads), "--precisions", precision]
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--precisions", nargs="+", choices=("fp32", "bf16", "fp16"), default=["fp32"]
    )
    parser.add_argument("--job", choices=list(JOBS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        model, artifact = map(str, asked.models)
        found = JOBS[asked.job](model, artifact, asked.threads, asked.precisions[0])
        print(json.dumps(found))
        return
    print("| model | weights | packed | arena | compile, peak | load and run (own) | "
          "onnxruntime (peak) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for model, precision in itertools.product(asked.models, asked.precisions):
        with tempfile.TemporaryDirectory() as folder:
            artifact = Path(folder) / "model.tsm"
            made, ours, other = (
                apart(job, model, artifact, asked.threads, precision) for job in JOBS
            )
        weights = made["weights"]
        print(
            f"| {model.stem} {precision} | {weights:.0f} "
            f"| {made['packed']:.0f} ({made['packed'] / weights:.2f}x) | {made['arena']:.1f} "
            f"| {made['peak']:.0f} ({made['peak'] / weights:.2f}x) "
            f"| {ours['now']:.0f} ({ours['own']:.0f}) | {other['now']:.0f} ({other['peak']:.0f}) |"
        )


if __name__ == "__main__":
    main()
