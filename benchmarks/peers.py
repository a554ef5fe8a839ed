"""Single operators against ONNX Runtime and OpenVINO: tune, compile, and time in turns.

    pip install 'tilesmith[peers]'
    python benchmarks/peers.py [--only NAME ...] [--seconds-each 60] [--json]

Each operator is a one-node ONNX model with plain row-major inputs and outputs (NCHW for images)
and constant weights, taken through the whole pipeline: layout conversions that our schedules want
are inside the figure. All runtimes run fp32 on one pinned core, in turns within one run; the
figure is our median over the faster peer's. Results differ from machine to machine; ratios of one
run do not drift.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from subjects import operator_models as models

import tilesmith
from tilesmith.display.output import note, table
from tilesmith.jobs.compilation.reports import Comparison
from tilesmith.jobs.evaluation.benching import compare


@dataclass(frozen=True)
class Case:
    """An operator, and the largest ratio of times that is good enough (None: reported only)."""

    make: Callable[[], onnx.ModelProto]
    limit: float | None


CASES = {
    "matmul 512x512x512": Case(lambda: models.matmul(512, 512, 512), 1.05),
    "matmul 128x768x768": Case(lambda: models.matmul(128, 768, 768), 1.05),
    "matmul 128x3072x768": Case(lambda: models.matmul(128, 3072, 768), 1.05),
    "conv2d 1x1 256->64 56x56": Case(lambda: models.conv2d(256, 64, 56, 1), 1.05),
    "conv2d 3x3 64->64 56x56": Case(lambda: models.conv2d(64, 64, 56, 3), 0.45),
    "conv2d 3x3 128->128 28x28": Case(lambda: models.conv2d(128, 128, 28, 3), 0.5),
    "conv2d 3x3 256->256 14x14": Case(lambda: models.conv2d(256, 256, 14, 3), 0.65),
    "conv2d 3x3 512->512 7x7": Case(lambda: models.conv2d(512, 512, 7, 3), None),
    "depthwise 3x3 96 112x112": Case(lambda: models.conv2d(96, 96, 112, 3, groups=96), 0.8),
    "softmax 1536x128": Case(lambda: models.softmax(1536, 128), 1.05),
}


def measure(case: Case, folder: Path, seconds: float, peers: tuple[str, ...]) -> Comparison:
    """Tune one operator from an empty database, compile it, time it against its peers."""
    proto = case.make()
    path = models.save(proto, folder / "model.onnx")
    database = folder / "tuning.db"
    database.unlink(missing_ok=True)
    tilesmith.tune(path, database=database, time_limit=seconds)
    executable = tilesmith.compile(path, database=database)
    return compare(executable, models.random_inputs(proto), peers, path)


def main() -> int:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="parts of names to measure")
    parser.add_argument("--seconds-each", type=float, default=60.0, help="tuning time per operator")
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    chosen = {
        name: case
        for name, case in CASES.items()
        if arguments.only is None or any(part in name for part in arguments.only)
    }
    results: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in chosen.items():
            note(f"{name} ...")
            results[name] = measure(
                case, Path(folder), arguments.seconds_each, tuple(arguments.against.split(","))
            )
            note(f"  ratio {results[name].ratio or 0:.3f}")
    missed = [n for n, r in results.items() if not meets(r.ratio, chosen[n].limit)]
    if arguments.json:
        print(json.dumps({name: result.to_json() for name, result in results.items()}, indent=2))
    else:
        print(report(results, {name: case.limit for name, case in chosen.items()}))
    return 1 if missed else 0


def meets(ratio: float | None, limit: float | None) -> bool:
    """Whether a ratio is within its limit."""
    return limit is None or (ratio is not None and ratio <= limit)


def report(results: dict[str, Comparison], limits: dict[str, float | None]) -> str:
    """A table: milliseconds of each runtime, our share of the faster peer's, the limit."""
    names = list(dict.fromkeys(peer for result in results.values() for peer in result.peers))
    rows = []
    for name, result in results.items():
        peers = [result.peers[peer].median_ms if peer in result.peers else None for peer in names]
        verdict = "met" if meets(result.ratio, limits[name]) else "MISSED"
        limit = limits[name]
        rows.append(
            (name, result.own.median_ms, *peers, result.ratio, limit, result.max_rel_err,
             verdict if limit is not None else "")
        )  # fmt: skip
    header = ("", "tilesmith ms", *(f"{n} ms" for n in names), "ratio", "limit", "rel error", "")
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
