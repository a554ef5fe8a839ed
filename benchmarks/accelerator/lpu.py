"""An LPU-like chip on its published shapes: share of peak of a matrix product over N, and how far
list schedules are from their bounds.

    python -m benchmarks.accelerator.lpu [--step 32] [--windows] [--set KEY=VALUE ...]

The curve is [2304 x 4096][4096 x N] in float16 for N from 1376 to 3500, weights resident, as the
TSP's second paper shows it (at least 80 % of 184 TFLOPS). `--windows` schedules smaller programs
once more in the order that CP-SAT gives to windows of their chains.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.accelerator.subjects.lpu_bounds import bounds
from benchmarks.accelerator.subjects.lpu_windows import scheduled_by_windows
from tilesmith.codegen.programs.structures import default_of
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.selected import selected
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

FIRST, LAST = 1376, 3500

WINDOWED = (
    "matmul m=196 n=1024 k=1024 dtype=int8 const=b",
    "matmul m=49 n=2048 k=2048 dtype=int8 const=b",
    "matmul m=128 n=768 k=3072 dtype=float16 const=b",
    "matmul m=384 n=1280 k=1280 dtype=float16 const=b",
)


def curve(target: Target, step: int) -> None:
    """Share of peak over N, the worst last."""
    chip, worst = Chip.of(target), (1.0, 0)
    print("     N   cycles  of peak  of bound  seconds to schedule and check")
    sizes = sorted({*range(FIRST, LAST + 1, step), *range(1601, LAST, 320), LAST})
    for n in sizes:
        workload = Workload.parse(f"matmul m=2304 n={n} k=4096 dtype=float16 const=b")
        flow = selected(workload, target, default_of(workload, target)).dataflow
        began = time.perf_counter()
        placed = schedule(flow, chip)
        check(placed)
        took = time.perf_counter() - began
        flops = template_of("matmul").flops(workload)
        share = flops / chip.peak_flops("float16") / placed.seconds
        worst = min(worst, (share, n))
        bound = bounds(flow, chip).least / placed.cycles
        print(f"{n:6d} {placed.cycles:8d}  {share:6.1%}    {bound:6.1%}  {took:.2f}")
    print(f"worst: {worst[0]:.1%} of peak at N = {worst[1]}")


def windows(target: Target) -> None:
    """List schedules against their bounds, before and after windows."""
    chip = Chip.of(target)
    print("list  windows  bound (by)  over bound   workload")
    for text in WINDOWED:
        workload = Workload.parse(text)
        flow = selected(workload, target, default_of(workload, target)).dataflow
        found = scheduled_by_windows(flow, chip)
        check(found.schedule)
        by = "CP-SAT" if found.proven > found.resources.least else found.resources.binding
        print(
            f"{found.listed:6d} {found.schedule.cycles:6d} {found.least:6d} ({by})  "
            f"{found.over_bound:6.1%}   {text}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=32, help="between values of N")
    parser.add_argument("--windows", action="store_true", help="windows by CP-SAT instead")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    target = load_target("lpu1").with_settings(settings)
    if arguments.windows:
        windows(target)
    else:
        curve(target, arguments.step)


if __name__ == "__main__":
    main()
