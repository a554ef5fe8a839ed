"""Single operators in float32, bfloat16 and int8: share of the machine's peak, and against peers.

    pip install 'tilesmith[peers]'
    python benchmarks/low_precision.py [--only NAME ...] [--seconds-each 20] [--json]

Each operator has a Relu behind it; in int8 activations are uint8, weights int8 by output channel,
and the result is quantised again. Ours are kernels in their own layouts: the default schedule, and
the best after some seconds of tuning from an empty database (`--seconds-each 0`: the default
alone). The peak is a loop of the same multiply-adds on registers alone
(`simulator/cpu/microbenchmarks/peak.py`): FMA, or the target's dot products. Peers run a model of
the operator, bytes in and out in int8,
numbers in float32 (OpenVINO computes them in bfloat16 where that is asked for). Everything runs on
one pinned core, in turns within one run; figures are medians. Ratios of one run do not drift.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from subjects.quantised_operators import Operator, floating, quantised

import tilesmith
from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_config, concrete_shape
from tilesmith.codegen.programs.structures import default_of
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.peers import PRECISIONS, load_peer
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks.peak import dot_peak_kernel, peak_kernel

Call = Callable[[], object]

CASES = {
    "matmul 512x512x512": Operator((512, 512), (512, 512)),
    "matmul 128x768x768": Operator((128, 768), (768, 768)),
    "matmul 128x3072x768": Operator((128, 768), (768, 3072)),
    "conv2d 3x3 64->64 56x56": Operator((1, 64, 56, 56), (64, 64, 3, 3)),
    "conv2d 3x3 256->256 14x14": Operator((1, 256, 14, 14), (256, 256, 3, 3)),
    "conv2d 1x1 256->64 56x56": Operator((1, 256, 56, 56), (64, 256, 1, 1)),
    "depthwise 3x3 96 112x112": Operator((1, 96, 112, 112), (96, 1, 3, 3), groups=96),
}

INTS = "dtype=uint8 weights=int8 epilogue=correction,rescale,relu,quantise_uint8"
FORMS = {
    "float32": "epilogue=bias,relu",
    "bfloat16": "dtype=bfloat16 epilogue=bias,relu",
    "int8": INTS,
}
"""What a workload's text ends in, by precision."""


@dataclass(frozen=True)
class Figure:
    """One operator in one precision.

    Attributes:
        ms, default_ms: of the best schedule, and of the default.
        peak: percent of the peak of this precision's multiply-adds; None where it has none.
        faster: times our own float32.
        peers: milliseconds by runtime.
    """

    ms: float
    default_ms: float
    peak: float | None
    faster: float
    peers: dict[str, float]


def workload_of(operator: Operator, precision: str) -> Workload:
    """The operator's workload with constant weights."""
    if not operator.convolution:
        (m, k), (_, n) = operator.shape, operator.weight
        return Workload.parse(f"matmul m={m} n={n} k={k} const=b {FORMS[precision]}")
    _, c, h, w = operator.shape
    oc, _, size, _ = operator.weight
    name = "depthwise_conv2d" if operator.groups > 1 else f"conv2d oc={oc}"
    shape = f"c={c} h={h} w={w} kh={size} kw={size} pad={size // 2}"
    return Workload.parse(f"{name} {shape} const=weight {FORMS[precision]}")


def bound(kernel: NativeKernel) -> Call:
    """A call on seeded random arrays in the kernel's physical layouts."""
    rng = np.random.default_rng(0)
    arrays = {}
    for buffer in (*kernel.inputs, kernel.output):
        array = aligned_empty(concrete_shape(buffer), to_numpy(buffer.dtype))
        whole = np.issubdtype(array.dtype, np.integer)
        array[...] = rng.integers(0, 100, array.shape) if whole else rng.random(array.shape)
        arrays[buffer.name] = array
    return kernel.bind({**arrays, **kernel.prepare(arrays)})


def peak_of(target: Target, precision: str) -> tuple[Call, int] | None:
    """A call of the peak's loop, and its operations."""
    types = {"bfloat16": ("bfloat16", "bfloat16"), "int8": ("uint8", "int8")}.get(precision)
    found = peak_kernel(target) if types is None else dot_peak_kernel(target, *types)
    return None if found is None else (bound(found[0]), found[1])


def schedules(
    workload: Workload, target: Target, folder: Path, seconds: float
) -> tuple[NativeKernel, NativeKernel]:
    """The default, and the best that tuning finds."""
    default = compile_config(workload, target, default_of(workload, target))
    if not seconds:
        return default, default
    database = folder / "tuning.db"
    database.unlink(missing_ok=True)
    tilesmith.tune(workload, target, database, time_limit=seconds)
    with Database.open(str(database)) as opened:
        chosen = Filter(status="ok", measured_by="hardware")
        best = opened.query(chosen, sort="fastest", limit=1)
    return default, compile_config(workload, target, best[0].config) if best else default


def peers_of(operator: Operator, precision: str, folder: Path) -> dict[str, Call]:
    """Runtimes that have the precision, by name."""
    proto = quantised(operator) if precision == "int8" else floating(operator)
    path = folder / f"{precision}.onnx"
    onnx.save(proto, str(path))
    rng = np.random.default_rng(1)
    values = (
        rng.integers(0, 256, operator.shape) if precision == "int8" else rng.random(operator.shape)
    )
    x = values.astype(np.uint8 if precision == "int8" else np.float32)
    names = PRECISIONS["bf16"] if precision == "bfloat16" else PRECISIONS["f32"]
    hint = "bf16" if precision == "bfloat16" else "f32"
    return {name: load_peer(name, path, {"x": x}, 1, hint).infer for name in names}


def measure(operator: Operator, target: Target, folder: Path, seconds: float) -> dict[str, Figure]:
    """All precisions of an operator, in turns."""
    calls: dict[str, Call] = {}
    peaks: dict[str, int] = {}
    flops = 0
    precisions = []
    for precision in FORMS:
        try:
            workload = workload_of(operator, precision)
            default, best = schedules(workload, target, folder, seconds)
        except TilesmithError as error:
            note(f"  {precision}: {error}")
            continue
        flops = template_of(workload.operator).flops(workload)
        precisions.append(precision)
        calls |= {f"{precision} default": bound(default), f"{precision} best": bound(best)}
        calls |= {f"{precision} {n}": c for n, c in peers_of(operator, precision, folder).items()}
        if (peak := peak_of(target, precision)) is not None:
            calls[f"{precision} peak"], peaks[precision] = peak
    with pinned(1):
        taken = {name: t.median_ms for name, t in interleave(calls, 6.0).items()}
    return {p: _figure(p, taken, flops, peaks.get(p, 0)) for p in precisions}


def _figure(precision: str, taken: dict[str, float], flops: int, operations: int) -> Figure:
    own = {name.split()[1]: ms for name, ms in taken.items() if name.split()[0] == precision}
    best, default, peak = own.pop("best"), own.pop("default"), own.pop("peak", 0.0)
    best = min(best, default)
    share = 100 * (flops / best) / (operations / peak) if peak else None
    first = min(taken["float32 best"], taken["float32 default"])
    return Figure(best, default, share, first / best, own)


def report(figures: dict[str, dict[str, Figure]]) -> Any:
    """A line for each operator and precision."""
    rows = []
    for name, found in figures.items():
        for precision, f in found.items():
            fastest = min(f.peers.values(), default=None)
            rows.append(
                (name, precision, f.ms, f.default_ms, f.peak, f.faster,
                 f.peers.get("onnxruntime"), f.peers.get("openvino"),
                 None if fastest is None else f.ms / fastest)
            )  # fmt: skip
    header = ("", "", "ms", "default ms", "% of peak", "x float32", "onnxruntime ms",
              "openvino ms", "ratio")  # fmt: skip
    return table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="parts of names to measure")
    parser.add_argument("--seconds-each", type=float, default=20.0, help="tuning time of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    target = resolve_target("cpu", None)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, operator in CASES.items():
            if options.only is None or any(part in name for part in options.only):
                note(f"{name} ...")
                figures[name] = measure(operator, target, Path(folder), options.seconds_each)
    if options.json:
        shown = {n: {p: asdict(f) for p, f in found.items()} for n, found in figures.items()}
        print(json.dumps(shown, indent=2))
    else:
        print(report(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
