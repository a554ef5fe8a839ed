"""Kernels in NKI, unedited, simulated beside what was measured of them on trn1.

    python benchmarks/accelerator/nki_kernels.py ACCELOPT [--only silu,adamw] [--values]

ACCELOPT is a checkout of zhang677/AccelOpt: fourteen kernels (`NKIBench/kernels`), their references
in numpy, and profiles (`experiments/full_complete_local/profile_results.csv`). Nothing of it is
changed or copied. `--values` runs each kernel, too, and compares it with its reference. A kernel
that cannot be read counts as a failure; the mean is over the others, and is said of how many.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.families.trainium.nki.kernels import NkiKernel, trace
from tilesmith.families.trainium.nki.report import timed
from tilesmith.search_space.support.errors import TilesmithError


def cases(root: Path) -> list[tuple[str, Path, Path, dict[str, Any]]]:
    """Name, kernel, reference and profile of each."""
    table = root / "experiments/full_complete_local/profile_results.csv"
    with table.open() as file:
        rows = list(csv.DictReader(file))
    bench = root / "NKIBench"
    return [
        (
            row["problem"],
            bench / "kernels" / Path(row["kernel"]).name,
            bench / "reference" / Path(row["task"]).name,
            json.loads(row["profile"]),
        )
        for row in rows
    ]


def parameters(file: Path) -> list[str]:
    """Names of the parameters of a file's function `kernel`."""
    tree = ast.parse(file.read_text())
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "kernel")
    return [argument.arg for argument in function.args.args]


def off(
    kernel: NkiKernel, arguments: dict[str, Any], reference: dict[str, Any], given: Any
) -> float:
    """The largest difference from the reference, by its largest element."""
    results = kernel.run({n: v for n, v in arguments.items() if isinstance(v, np.ndarray)})
    values = tuple(results.values())
    wanted = reference["forward"](*given)
    shaped = reference["transform_nki_outputs"](values if len(values) > 1 else values[0], wanted)
    pairs = zip(shaped, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    return max(float(np.abs(np.reshape(v, w.shape) - w).max() / np.abs(w).max()) for v, w in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("accelopt", type=Path)
    parser.add_argument("--only", default="", help="names to show, comma-separated")
    parser.add_argument("--values", action="store_true")
    arguments = parser.parse_args()
    print(f"{'kernel':24s} measured  simulated  ratio  as written  read MB (measured)  traced in")
    ratios, failures = [], 0
    for name, file, task, profile in cases(arguments.accelopt):
        if arguments.only and name not in arguments.only.split(","):
            continue
        np.random.seed(0)
        reference = runpy.run_path(str(task))
        given = reference["get_inputs"]()
        inputs = reference["transform_to_nki_inputs"](given)
        named = dict(zip(parameters(file), inputs, strict=True))
        begun = time.perf_counter()
        try:
            kernel = trace(f"{file}::kernel", named)
        except TilesmithError as error:
            failures += 1
            print(f"{name:24s} {error}", flush=True)
            continue
        elapsed, report = time.perf_counter() - begun, timed(kernel)
        ratios.append(report.scheduled / profile["latency"])
        beside = f"  off {off(kernel, named, reference, given):.1e}" if arguments.values else ""
        print(
            f"{name:24s} {profile['latency']:8.3f}  {report.scheduled:9.3f}  {ratios[-1]:5.3f}  "
            f"{report.as_written:10.3f}  {report.read / 1e6:7.0f} "
            f"({profile['hbm_read_bytes'] / 1e6:7.0f})  {elapsed:5.1f} s{beside}",
            flush=True,
        )
    mean = float(np.mean(np.abs(np.array(ratios) - 1)))
    print(f"{len(ratios)} kernels {mean:.1%} off in the mean; {failures} not read")


if __name__ == "__main__":
    main()
