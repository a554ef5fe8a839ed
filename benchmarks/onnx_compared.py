"""ONNX's own backend suite through `tilesmith compare`: where is a right model called wrong?

    python -m benchmarks.onnx_compared --target cpu --precision bf16 [--only REGEX] [--every N]
        [--jobs 2] [--timeout S] [--json FILE]

Every case is compiled for the target and compared, tensor by tensor, on the suite's inputs where it
has some. The compiler passes these cases, so a case that is not clean is a false alarm, or a
fault nobody has seen; a case that ends in anything but a sentence is a crash. Both are listed, with
the first tensor that is called bad; cases refused in a sentence are counted. Exit code 1 if there
is an alarm or a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.loader import load_model_tests

    import tilesmith as ts
    from benchmarks.onnx_suite import Case, Outcome, cases, run_cases
    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

_REFUSED = "refused: "


@dataclass(frozen=True)
class Asked:
    """What a case is compared on; what a worker process does with its name."""

    target: str
    precision: str

    def __call__(self, name: str) -> Outcome:
        started = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reason = self._reason(name)
        return Outcome(name, reason, time.monotonic() - started)

    def _reason(self, name: str) -> str:
        """ "" of a clean case."""
        try:
            model, inputs = _inputs(name)
            report = ts.compare(
                model, self.target, None, inputs=inputs, precision=self.precision, threads=1
            )
        except TilesmithError as error:
            return f"{_REFUSED}{' '.join(str(error).split())[:300]}"
        except Exception as error:
            return f"crash: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if report.clean:
            return ""
        row = next((r for r in report.tensors if r.name == report.first_bad), None)
        told = "" if row is None else (
            f" of {row.operator} by {row.step}, {row.dtype}{list(row.shape)}: {row.verdict}, "
            f"off by {row.error.max_rel:.3g}, R {row.ratio}"
        )  # fmt: skip
        return f"alarm: {report.first_bad}{told}; nan {report.first_nan}; {report.whole}"


@cache
def _tests() -> dict[str, Any]:
    kinds = ("node", "real", "simple", "pytorch-converted", "pytorch-operator")
    return {test.name: test for kind in kinds for test in load_model_tests(kind=kind)}


def _inputs(name: str) -> tuple[onnx.ModelProto, dict[str, Any] | None]:
    """A case's model and its first inputs by name; None: seeded ones."""
    test = _tests()[name]
    model = test.model
    if model is None and test.model_dir is not None:
        model = onnx.load(Path(test.model_dir) / "model.onnx")
    if model is None:
        model = onnx.load(Path(onnx.__file__).parent.parent / test.url)
    if test.data_sets:
        values = list(test.data_sets[0][0])
    elif test.model_dir is not None:
        folder = Path(test.model_dir) / "test_data_set_0"
        files = sorted(folder.glob("input_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
        values = [_read(file) for file in files]
    else:
        return model, None
    held = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    if len(values) < len(names):
        names = [one for one in names if one not in held]
    return model, {n: _array(v) for n, v in zip(names, values, strict=False)} or None


def _read(file: Path) -> Any:
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)


def _kind(outcome: Outcome) -> str:
    if outcome.passed:
        return "clean"
    return outcome.reason.partition(":")[0] if ":" in outcome.reason else "crash"


def _chosen(only: str) -> Sequence[Case]:
    return [c for c in cases() if not c.exclusion and re.search(only, c.name)]


def main() -> int:
    """Compare the suite; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--only", default="", help="regular expression of the cases to compare")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th of these")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a case may take")
    parser.add_argument("--json", metavar="FILE", help="write every outcome as it comes")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    rows = []
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("ONNX_HOME", home)  # where ONNX puts what it makes of light models
        _tests()
        asked = Asked(options.target, options.precision)
        chosen = _chosen(options.only)[:: options.every]
        for outcome in run_cases(chosen, options.jobs, options.timeout, asked):
            kind = _kind(outcome)
            counts[kind] = counts.get(kind, 0) + 1
            rows.append({**asdict(outcome), "kind": kind})
            if kind not in ("clean", "refused"):
                print(f"{outcome.name}: {outcome.reason}", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{options.target}, {options.precision}: {told}")
    return int(any(kind not in ("clean", "refused") for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
