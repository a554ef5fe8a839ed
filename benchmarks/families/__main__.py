"""Model families, small and true to form: compiled, run, and held against their framework.

    python benchmarks/families [--only NAME ...] [--ways onnx torch] [--targets cpu trn1]
        [--precisions fp32 bf16] [--json]

For each family, way in, target and precision: the largest difference from PyTorch relative to the
largest value, the nodes that run on the host, and the share of the latency they take.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import detection
import language  # noqa: F401  (registers its families)
import numpy as np
import onnx
import torch
import vision  # noqa: F401  (registers its families)
from case import FAMILIES, Case
from torch.utils import _pytree as pytree

import tilesmith
from tilesmith.search_space.errors import TilesmithError

LIMITS = {"fp32": 1e-4, "bf16": 3e-2}


def exported(case: Case, folder: Path) -> Path:
    """The family's ONNX file, as PyTorch writes it today."""
    path = folder / f"{case.name}.onnx"
    program = torch.onnx.export(
        case.module, (), kwargs=case.inputs, dynamo=True, verbose=False, input_names=[*case.inputs]
    )
    assert program is not None
    model = program.model_proto
    if case.name == "detector":
        model = detection.with_suppression(model)
    onnx.save(model, path)
    return path


def difference(found: list[Any], expected: list[Any]) -> float:
    """max |a - b| / max |b| over all outputs."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=False):
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        worst = max(worst, float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)))
    return worst


def compiled_rows(case: Case, path: Path, target: str, precision: str) -> dict[str, Any]:
    """One line of the table, by way of ONNX."""
    expected = [t.numpy() for t in pytree.tree_leaves(case.module(**case.inputs))]
    started = time.perf_counter()
    executable = tilesmith.compile(path, target, precision=precision)
    seconds = time.perf_counter() - started
    found = executable.run({name: t.numpy() for name, t in case.inputs.items()})
    return {
        "family": case.name, "way": "onnx", "target": target, "precision": precision,
        "error": difference(list(found.values()), expected), "compile_s": seconds,
        "host": list(executable.report.host_nodes),
    }  # fmt: skip


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of the table; a failure is a line with its sentence."""
    for name in arguments.only or FAMILIES:
        case = FAMILIES[name]()
        try:
            path = exported(case, folder)
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[-1]
            yield {"family": name, "way": "onnx", "failed": f"PyTorch cannot export it: {reason}"}
            continue
        for target in arguments.targets:
            for precision in arguments.precisions if target != "cpu" else ["fp32"]:
                try:
                    yield compiled_rows(case, path, target, precision)
                except TilesmithError as error:
                    yield {
                        "family": name, "way": "onnx", "target": target, "precision": precision,
                        "failed": str(error),
                    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[*FAMILIES])
    parser.add_argument("--targets", nargs="*", default=["cpu", "trn1"])
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for row in rows(arguments, folder):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
