"""PyTorch's own samples of its operators by `torch.compile(backend="tilesmith")`, against eager.

    pip install 'tilesmith[torch]' expecttest
    python -m benchmarks.torch_operators [--only REGEX] [--samples 2] [--jobs 2] [--range 0:350]

The samples are those that PyTorch tests itself with (`torch.testing`, the table `op_db`): the
first of each operator, in the first of float32, int64, bool and complex64 that it takes. Seeds are
set before both calls. By sample, the verdicts are: `whole`; `left`, right and with operators left
to PyTorch, which are named; `wrong`; `raised`, also for a process that ended or took too long;
`dynamo's`, where the backend "eager" of PyTorch's own fails in the same way; `not of eager`, where
PyTorch itself raises. Printed are all that are not whole, a line for each reason of an operator,
what was left how often, and a sum. Exit code 1 if anything is wrong or raised.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

try:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils import _pytree as pytree

    import tilesmith.torch_backend  # before processes start, that all have it
    from benchmarks.operator_sweep import ENDED, Outcome, sweep
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

OPERATORS: dict[str, Any] = {entry.formatted_name: entry for entry in op_db}
"""By name, in PyTorch's order."""

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
"""The first that an operator takes is its samples'."""

UNSET = re.compile(r"(^|_)(new_)?empty(_|$)")
"""Operators whose results nobody has written: their shapes and types are compared."""

TOLERANCE = 1e-3
"""Relative, and of the largest value."""

BAD = ("wrong", "raised")
VERDICTS = ("whole", "left", *BAD, "dynamo's", "not of eager")


def samples(name: str, count: int) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """(input, args, kwargs) of the first samples of an operator."""
    entry = OPERATORS[name]
    dtype = next((d for d in DTYPES if d in entry.supported_dtypes("cpu")), None)
    if dtype is not None:
        torch.manual_seed(7)
        made = entry.sample_inputs("cpu", dtype, requires_grad=False)
        yield from ((s.input, tuple(s.args), dict(s.kwargs)) for s in islice(made, count))


def called(name: str, sample: Any, backend: str) -> Any:
    """What an operator gives for a sample, copied: by a backend, or by PyTorch alone ("")."""
    given, args, kwargs = copy.deepcopy(sample)  # views keep the memory that they are of
    operator = OPERATORS[name].op

    def call(given: Any, args: Any, kwargs: Any) -> Any:
        return operator(given, *args, **kwargs)

    torch._dynamo.reset()
    torch.manual_seed(11)
    run = torch.compile(call, backend=backend, dynamic=False) if backend else call
    return run(given, args, kwargs)


def failure(name: str, sample: Any, backend: str, wanted: Any) -> tuple[str, str]:
    """("wrong" or "raised", what it is) for a backend; ("", what is left) if it is right."""
    try:
        result = called(name, sample, backend)
        left = _left()  # before the graphs are gone
    except Exception as error:  # of any kind: it is the sample's result
        return "raised", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    difference = _difference(name, result, wanted)
    return ("wrong", difference) if difference else ("", left)


def _left() -> str:
    """What Dynamo's graphs leave to PyTorch."""
    graphs = tilesmith.torch_backend.reports()
    names = {operator for graph in graphs for operator in graph.left}
    return ", ".join(sorted(names)) if any(g.compiled or g.left for g in graphs) else "all of it"


def _difference(name: str, result: Any, wanted: Any) -> str:
    """What differs of two results; "" if nothing does."""
    ours, theirs = pytree.tree_leaves(result), pytree.tree_leaves(wanted)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, PyTorch's {len(theirs)}"
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            same = type(a) is type(b) and (a == b or (a != a and b != b))
            if not same:
                return f"result {number} is {a!r:.80}, PyTorch's {b!r:.80}"
            continue
        if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
            return (
                f"result {number} is {a.dtype}{tuple(a.shape)}, PyTorch's {b.dtype}{tuple(b.shape)}"
            )
        if not UNSET.search(name) and (text := _apart(a, b)):
            return f"result {number} differs by {text}"
    return ""


def _apart(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.layout is not torch.strided or a.is_quantized:
        a, b = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
    wide = torch.complex128 if a.is_complex() else torch.float64
    ours, theirs = a.resolve_conj().to(wide), b.resolve_conj().to(wide)
    sizes = theirs.abs()[theirs.isfinite()]
    scale = float(sizes.max()) if sizes.numel() else 0.0
    limit = {"rtol": TOLERANCE, "atol": TOLERANCE * min(scale, 1.0)}
    if torch.isclose(ours, theirs, **limit, equal_nan=True).all():
        return ""
    return f"{float((ours - theirs).abs().nan_to_num(torch.inf).max()):.3g} of {scale:.3g}"


def outcome(name: str, number: int, sample: Any) -> Outcome:
    """What becomes of one sample."""
    variant = f"{name} {number}"
    try:
        wanted = called(name, sample, "")
    except Exception as error:
        return Outcome(variant, "not of eager", type(error).__name__)
    kind, reason = failure(name, sample, "tilesmith", wanted)
    if not kind:
        return Outcome(variant, "left" if reason else "whole", reason, native=not reason)
    if failure(name, sample, "eager", wanted)[0] == kind:
        kind = "dynamo's"
    return Outcome(variant, kind, reason)


def swept(name: str, path: str, count: int) -> None:
    """Write the outcomes of an operator, a line each, as they come; see `operator_sweep`."""
    with Path(path).open("a", encoding="utf-8") as file, torch.no_grad():
        for number, sample in enumerate(samples(name, count)):
            file.write(json.dumps({"begun": f"{name} {number}"}) + "\n")
            file.flush()
            file.write(json.dumps(asdict(outcome(name, number, sample))) + "\n")
            file.flush()


def _remember_functions() -> None:
    """Let the exporter read its functions' source once, which it does in every export: that takes
    longer than the rest of a sample."""
    from torch.onnx._internal._lazy_import import onnxscript_apis

    read = onnxscript_apis.get_torchlib_ops
    setattr(sys.modules[read.__module__], read.__name__, cache(read))


def _print(name: str, outcomes: list[Outcome]) -> None:
    lines = Counter((o.verdict, o.reason) for o in outcomes if o.verdict != "whole")
    for (verdict, reason), times in lines.items():
        print(f"{verdict:12} {name}: {reason} ({times})", flush=True)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--samples", type=int, default=2, help="of an operator, at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30, help="that a sample may take")
    parser.add_argument("--range", default=":", metavar="FROM:TO", help="of operators, by number")
    return parser.parse_args()


def main() -> int:
    """Print what is not whole, and sums."""
    asked = _parsed()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    first, last = (int(number) if number else None for number in asked.range.split(":"))
    names = [name for name in list(OPERATORS)[first:last] if re.search(asked.only, name)]
    _remember_functions()
    with torch.no_grad():  # what is loaded once is loaded before processes start
        called("add", next(samples("add", 1)), "tilesmith")
    counts: Counter[str] = Counter()
    left: Counter[str] = Counter()
    ran = 0
    for name, raw in sweep(names, asked.jobs, asked.seconds * asked.samples, swept, asked.samples):
        outcomes = [_ended(o) for o in raw]
        ran += bool(outcomes)
        _print(name, outcomes)
        counts.update(o.verdict for o in outcomes)
        for entry in outcomes:
            if entry.verdict == "left":
                left.update(entry.reason.split(", "))
    print("left to PyTorch, by samples: " + ", ".join(f"{n} {c}" for n, c in left.most_common()))
    sums = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    print(f"{ran} operators, {counts.total()} samples: {sums}")
    return int(any(counts[verdict] for verdict in BAD))


def _ended(entry: Outcome) -> Outcome:
    """An operator whose process did not come to its end."""
    return Outcome(entry.variant, "raised", entry.reason) if entry.reason in ENDED else entry


if __name__ == "__main__":
    sys.exit(main())
