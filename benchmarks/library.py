"""Libraries beside onnxruntime: sizes on disk, time to the first result, memory, and time of a run.

    python -m benchmarks.library [--models squeezenet,resnet50] [--database FILE] [--runs 20]

Each model becomes a shared library with its weights in a file, linked to a program of C that runs
it once. Measured are that program from its start to its end, the same of a Python process that
imports onnxruntime, makes a session and runs it, and the session and its first run alone; then
runs of both in this process, in turns, each on one thread. Inputs are random, as are weights.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import tilesmith as ts
from tilesmith.compiler.backends.shipping import Library
from tilesmith.display.output import table
from tilesmith.jobs.subjects.light_models import save_light_model

_ONCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PASTE(a, b) a##_##b
#define NAME(a, b) PASTE(a, b)
#define CALL(name) NAME(MODEL, name)
int main(int argc, char **argv) {
    const void *in[64];
    void *out[64];
    CALL(workspace) *workspace;
    if (argc < 2 || CALL(init)(argv[1]) || CALL(create)(1, &workspace)) return 1;
    for (size_t i = 0; i < CALL(inputs)(); i++) in[i] = calloc(1, CALL(input)(i)->bytes);
    for (size_t i = 0; i < CALL(outputs)(); i++) out[i] = calloc(1, CALL(output)(i)->bytes);
    if (CALL(run)(workspace, in, out)) return 2;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "VmHWM:", 6)) fputs(line, stdout);
    return 0;
}
"""

_PEER = """
import sys, time
start = time.perf_counter()
import numpy as np, onnxruntime
imported = time.perf_counter()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs()})
print(time.perf_counter() - imported)
print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@dataclass(frozen=True)
class Process:
    """What a process took: seconds, and MB of memory at its largest."""

    seconds: float
    memory: float
    said: str


def process(*command: str | Path) -> Process:
    """Run one to its end, three times; the quickest."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - start
        first, memory = done.stdout.split("VmHWM:")
        found.append(Process(seconds, int(memory.split()[0]) / 1e3, first))
    return min(found, key=lambda one: one.seconds)


def program(library: Library, folder: Path) -> Path:
    """A program that runs a library once."""
    (folder / "once.c").write_text(_ONCE)
    made = folder / f"{library.prefix}_once"
    subprocess.run(
        ["cc", "-O2", f"-DMODEL={library.prefix}", "-include", library.header,
         str(folder / "once.c"), library.path, "-o", str(made), "-Wl,-rpath,$ORIGIN"],
        check=True,
    )  # fmt: skip
    return made


def calls(library: Library, model: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A run of the library, and of onnxruntime, on the same inputs in place."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    wanted = session.run(None, inputs)
    outputs = [np.zeros_like(array) for array in wanted]
    for node in session.get_outputs():
        binding.bind_output(node.name)
    loaded = ctypes.CDLL(library.path)
    assert not getattr(loaded, f"{library.prefix}_init")(str(library.weights).encode())
    workspace = ctypes.c_void_p()
    assert not getattr(loaded, f"{library.prefix}_create")(1, ctypes.byref(workspace))
    run = getattr(loaded, f"{library.prefix}_run")
    tables = [
        (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        for arrays in (list(inputs.values()), outputs)
    ]
    assert run(workspace, *tables) == 0
    for found, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-4 * np.abs(expected).max())
    kept = (inputs, outputs, loaded)
    return lambda: (run(workspace, *tables), kept), lambda: session.run_with_iobinding(binding)


def medians(both: tuple[Callable[[], Any], Callable[[], Any]], runs: int) -> list[float]:
    """Milliseconds of each, in turns."""
    found: list[list[float]] = [[], []]
    for _ in range(runs):
        for one, times in zip(both, found, strict=True):
            one()
            start = time.perf_counter()
            one()
            times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(times) for times in found]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="squeezenet,shufflenet,resnet50")
    parser.add_argument("--database")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    capi = Path(onnxruntime.__file__).parent / "capi"
    peer_size = sum(path.stat().st_size for path in capi.glob("*.so*")) / 1e6
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in options.models.split(","):
            path = save_light_model(model, folder / f"{model}.onnx")
            made = ts.emit_library(
                path, folder / f"lib{model}.so", database=options.database, weights="file"
            )
            own = process(program(made, folder), str(made.weights))
            peer = process(sys.executable, "-c", _PEER, path)
            library, other = medians(calls(made, path), options.runs)
            rows.append(
                (model, made.nbytes / 1e3, made.weight_bytes / 1e6, path.stat().st_size / 1e6,
                 1e3 * own.seconds, 1e3 * float(peer.said), 1e3 * peer.seconds,
                 own.memory, peer.memory, library, other)
            )  # fmt: skip
    print(f"onnxruntime {onnxruntime.__version__}: its libraries have {peer_size:.1f} MB\n")
    heads = ("model", "library kB", "weights MB", "ONNX MB")
    print(table(heads, [row[:4] for row in rows]))
    print("\nFirst result, ms, and memory at its largest, MB (a Python process of onnxruntime)")
    heads = ("model", "library", "session + run", "process", "library MB", "onnxruntime MB")
    print(table(heads, [(row[0], *row[4:9]) for row in rows]))
    print("\nA run on one thread, ms")
    heads = ("model", "library", "onnxruntime", "ratio")
    print(table(heads, [(row[0], row[9], row[10], row[10] / row[9]) for row in rows]))


if __name__ == "__main__":
    main()
