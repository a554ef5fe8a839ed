"""Single kernels against the machine's FMA peak, in their own layouts: tune, then time in turns.

    python benchmarks/kernels.py [--only NAME ...] [--seconds-each 30] [--json]

Each operator is tuned from an empty database; its best schedules (of the algorithm named, where one
is) are then timed in turns with a register-resident FMA loop of the same vector width, on one
pinned core. The figure is the share of that loop's speed, counting the operations of the direct
form, so that a Winograd convolution may pass 100 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import meets
from subjects.bound_kernels import bound

import tilesmith
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import Timing, interleave, pinned
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks.peak import peak_kernel


@dataclass(frozen=True)
class Case:
    """An operator and the least share of peak, in percent.

    Attributes:
        algorithms: count only schedules of these; empty means all.
        isa: vector instruction set the target is narrowed to; "" means the host's.
    """

    workload: str
    limit: float
    algorithms: tuple[str, ...] = ()
    isa: str = ""


_CONV3 = "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight"
CASES = {
    "matmul 512x512x512": Case("matmul m=512 n=512 k=512 const=b", 92),
    "matmul 128x768x768": Case("matmul m=128 n=768 k=768 const=b", 92),
    "matmul 128x3072x768": Case("matmul m=128 n=3072 k=768 const=b", 88),
    "conv2d 1x1 256->64 56x56": Case("conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight", 85),
    "conv2d 3x3 64->64 56x56 direct": Case(_CONV3, 82, ("channels", "width")),
    "conv2d 3x3 64->64 56x56 winograd4": Case(_CONV3, 250, ("winograd4",)),
    "matmul 512x512x512 avx2": Case("matmul m=512 n=512 k=512 const=b", 90, (), "avx2"),
}
FINALISTS = 3
"""Best schedules of the database that are timed again; the fastest counts."""


@dataclass(frozen=True)
class Figure:
    """What one case came to: speeds in GFLOP/s, `share` in percent of peak."""

    gflops: float
    peak_gflops: float
    share: float
    config: str


def finalists(case: Case, database: Path, target: Target) -> list[tuple[str, NativeKernel]]:
    """The best schedules found, of the algorithms asked for, fastest first."""
    workload = Workload.parse(case.workload)
    found = []
    with Database.open(str(database)) as opened:
        for algorithm in case.algorithms or ("",):
            wanted = f'"algorithm":"{algorithm}"' if algorithm else ""
            chosen = Filter(config=wanted, status="ok", measured_by="hardware")
            found += opened.query(chosen, sort="fastest", limit=FINALISTS)
    found.sort(key=lambda record: record.latency or 0.0)
    return [
        (str(record.config), compile_config(workload, target, record.config))
        for record in found[:FINALISTS]
    ]


def measure(case: Case, folder: Path, seconds: float) -> Figure:
    """Tune one operator from an empty database, time its best schedules against the peak."""
    target = resolve_target("cpu", {"isa.name": case.isa} if case.isa else None)
    workload = Workload.parse(case.workload)
    database = folder / "kernels.db"
    database.unlink(missing_ok=True)
    tilesmith.tune(workload, target, database, time_limit=seconds)
    peak, peak_flops = peak_kernel(target)
    kernels = dict(finalists(case, database, target))
    contenders: dict[str, Callable[[], object]] = {n: bound(k) for n, k in kernels.items()}
    with pinned(1):
        timings: dict[str, Timing] = interleave({"peak": bound(peak), **contenders})
    best = min(kernels, key=lambda name: timings[name].median_ms)
    flops = template_of(workload.operator).flops(workload)
    gflops = flops / timings[best].median_ms / 1e6
    peak_gflops = peak_flops / timings["peak"].median_ms / 1e6
    return Figure(gflops, peak_gflops, 100 * gflops / peak_gflops, best)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds-each", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            figures[name] = measure(CASES[name], Path(folder), options.seconds_each)
            note(f"{name}: {figures[name].share:.1f} % of peak")
    if options.json:
        print(json.dumps({name: vars(figure) for name, figure in figures.items()}, indent=2))
    else:
        print(report(figures))
    reached = all(meets(-f.share, -CASES[name].limit) for name, f in figures.items())
    return 0 if reached else 1


def report(figures: dict[str, Figure]) -> Any:
    """The figures for people."""
    rows = [
        (n, f"{f.gflops:.0f}", f"{f.peak_gflops:.0f}", f"{f.share:.1f}", f"{CASES[n].limit:.0f}")
        for n, f in figures.items()
    ]
    return table(("operator", "GFLOP/s", "peak", "% of peak", "at least"), rows)


if __name__ == "__main__":
    sys.exit(main())
