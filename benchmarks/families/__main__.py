"""Model families, small and true to form: compiled, run, and held against their framework.

    python benchmarks/families [--only NAME ...] [--ways onnx torch] [--targets cpu trn1]
        [--precisions fp32 bf16 fp16] [--keep FOLDER] [--json]

For each family, way in, target and precision: the largest difference from PyTorch relative to the
largest value, seconds to compile, the nodes that run on the host and, on simulated cores, their
share of the latency.
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

try:
    import detection
    import language  # noqa: F401  (registers its families)
    import numpy as np
    import onnx
    import torch
    import vision  # noqa: F401  (registers its families)
    from case import FAMILIES, Case
    from torch.utils import _pytree as pytree

    import tilesmith as ts
    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

LIMITS = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 3e-3}
"""Of the relative error."""


def exported(case: Case, folder: Path) -> Path:
    """The family's ONNX file, as PyTorch writes it today."""
    folder.mkdir(parents=True, exist_ok=True)
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
    """max |a - b| / max |b|, of the output that differs most."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=False):
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        worst = max(worst, float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)))
    return worst


def row(case: Case, way: str, path: Path, target: str, precision: str) -> dict[str, Any]:
    """One line of the table; a failure is a line with its sentence."""
    expected = [t.numpy() for t in pytree.tree_leaves(case.module(**case.inputs))]
    made = {"family": case.name, "way": way, "target": target, "precision": precision}
    started = time.perf_counter()
    try:
        if way == "onnx":
            model: Any = path
            executable = ts.compile(path, target, precision=precision)
            given = {name: tensor.numpy() for name, tensor in case.inputs.items()}
            found = list(executable.run(given).values())
        else:
            module = ts.from_torch(case.module, (), case.inputs, target=target, precision=precision)
            executable = module.executable
            model = module.model
            found = [t.numpy() for t in pytree.tree_leaves(module(**case.inputs))]
        made["seconds"] = time.perf_counter() - started
        if target != "cpu":
            simulated = ts.simulate(model, target, precision=precision)
            made["host_share"] = simulated.details["host_us"] / simulated.latency_us
            made["latency_us"] = simulated.latency_us
    except TilesmithError as error:
        return {**made, "failed": str(error)}
    error = difference(found, expected)
    limit = LIMITS[executable.report.precision]  # chips without fp32 compute in another
    return {**made, "error": error, "agrees": error <= limit,
            "host": list(executable.report.host_nodes)}  # fmt: skip


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of the table."""
    for name in arguments.only or FAMILIES:
        case = FAMILIES[name]()
        path = exported(case, folder) if "onnx" in arguments.ways else folder
        for way in arguments.ways:
            for target in arguments.targets:
                for precision in arguments.precisions:
                    if precision == "fp16" and target != "cpu":
                        continue
                    yield row(case, way, path, target, precision)


def text(found: dict[str, Any]) -> str:
    """A line for people."""
    head = f"{found['family']:13} {found['way']:6} {found['target']:5} {found['precision']:5}"
    if "failed" in found:
        return f"{head} {found['failed']}"
    share = f"{found['host_share']:7.1%}" if "host_share" in found else " " * 7
    operators = ", ".join(sorted({node.split()[0] for node in found["host"]})) or "-"
    verdict = "" if found["agrees"] else "  DIFFERS"
    return f"{head} {found['error']:9.1e} {found['seconds']:6.1f} s {share}  {operators}{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[*FAMILIES])
    parser.add_argument("--ways", nargs="*", default=["onnx", "torch"], choices=["onnx", "torch"])
    parser.add_argument("--targets", nargs="*", default=["cpu", "trn1"])
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    failed = False
    if not arguments.json:
        print(f"{'family':13} {'way':6} {'on':5} {'in':5} {'error':>9} {'compile':>8}  host share")
    with tempfile.TemporaryDirectory() as temporary:
        for found in rows(arguments, arguments.keep or Path(temporary)):
            failed |= not found.get("agrees", False)
            print(json.dumps(found) if arguments.json else text(found), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
