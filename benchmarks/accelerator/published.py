"""Simulated against published kernels on trn1: latency, HBM traffic and engine activity, misses
included.

    python benchmarks/accelerator/published.py [--calibrate | --activity] [--set KEY=VALUE ...]

The published numbers are profiles of seven kernels on real hardware (zhang677/AccelOpt,
profile_results.csv) and latencies of eight others (ucb-bar/autocomp, examples/trn-tutorial).
`silu` and `transpose_matmul` calibrate the constants that the target file marks calibratable, three
of the products in bf16 (`gemm 4x2`) what a row costs; the others only judge. `--calibrate` fits
those constants anew and prints them (to be written into the target file, with what is not fitted
left alone). `--activity` compares ways to count an engine as active with the profiles.

What the vendor's compiler does with the order of a source is not known: kernels are compared in the
better of the source's order and the scheduler's, and the latency in the source's order stands
beside it. Where the two differ, a kernel that is not measured lies between them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from subjects import kernels, tutorials

from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Opcode
from tilesmith.families.trainium.codegen.timing.costs import costs
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, timeline
from tilesmith.search_space.hardware.target import Target, load_target


@dataclass(frozen=True)
class Published:
    """A measured kernel: latency in ms, HBM traffic in MB and share of time engines were active,
    where they are known."""

    kernel: Callable[[Core], InstructionStream]
    latency: float
    read: float | None = None
    written: float | None = None
    activity: Mapping[str, float] = field(default_factory=dict)
    calibrates: bool = False


PUBLISHED: dict[str, Published] = {
    "silu": Published(kernels.silu, 1.333, 117.4, 117.4, {"scalar": 0.315, "vector": 0.739}, True),
    "transpose_matmul": Published(
        kernels.transpose_matmul, 9.610, 392, 179, {"scalar": 0.038}, True
    ),
    "matmul": Published(kernels.matmul, 35.20, 9060, 201, {"scalar": 0.068}),
    "bmm": Published(kernels.bmm, 4.611, 67, 1086, {"scalar": 0.37}),
    "swiglu": Published(kernels.swiglu, 4.222, 141.6, 83.9, {"scalar": 0.093, "vector": 0.135}),
    "adamw": Published(kernels.adamw, 2.000, 358.6, 89.7, {"scalar": 0.616, "vector": 0.900}),
    "rope_single_freq": Published(
        kernels.rope_single_freq, 4.333, 268.4, 134.2, {"scalar": 0.141, "vector": 0.716}
    ),
    "gemm 1x1": Published(tutorials.gemm, 20.99),
    "gemm 2x1": Published(partial(tutorials.gemm, wide=2), 28.68),
    "gemm 2x2": Published(partial(tutorials.gemm, tall=2, wide=2), 11.80),
    "gemm 4x2": Published(partial(tutorials.gemm, tall=4, wide=2), 8.07, calibrates=True),
    "gemm 4x2, pairs": Published(
        partial(tutorials.gemm, tall=4, wide=2, left=2), 7.62, calibrates=True
    ),
    "gemm 4x2, wide": Published(
        partial(tutorials.gemm, tall=4, wide=2, left=4, right=2), 6.96, calibrates=True
    ),
    "staged attention": Published(tutorials.staged_attention, 3.093),
    "late attention": Published(tutorials.late_attention, 0.293),
}

FITS: dict[str, tuple[str, Callable[[Timeline], float], float]] = {
    "vector.latency": ("silu", lambda t: t.engines["vector"] * t.makespan, 0.739 * 1.333e6),
    "scalar.latency": (
        "transpose_matmul", lambda t: t.engines["scalar"] * t.makespan, 0.038 * 9.610e6,
    ),
    "semaphore.ns": ("silu", lambda t: t.makespan, 1.333e6),
    "tensor.fp32_pass_overhead": ("transpose_matmul", lambda t: t.makespan, 9.610e6),
}  # fmt: skip
"""Calibratable constant: the kernel and quantity (ns) that decide it, and its published value."""


def traffic(stream: InstructionStream) -> tuple[float, float]:
    """MB read from and written to HBM."""
    moved, op = costs(stream).bytes, stream.rows["op"]
    return float(moved[op == Opcode.LOAD].sum()) / 1e6, float(moved[op == Opcode.STORE].sum()) / 1e6


def calibrate(target: Target, rounds: int = 3) -> dict[str, float]:
    """Fit each constant of `FITS` in turn by bisection, a few rounds over all."""
    values = {name: target.number(name) for name in FITS}
    for _ in range(rounds):
        for name, (kernel, quantity, wanted) in FITS.items():
            low, high = 0.0, 1000.0
            for _ in range(12):
                middle = (low + high) / 2
                core = Core.of(target.with_settings({**values, name: middle}))
                found = quantity(timeline(PUBLISHED[kernel].kernel(core), schedule=True))
                low, high = (middle, high) if found < wanted else (low, middle)
            values[name] = round((low + high) / 2, 1)
            assert target.fact(name).calibratable, name
    return values


def row(name: str, published: Published, core: Core) -> tuple[float, str]:
    """Simulated by published latency, and the line of the table."""
    begun = time.perf_counter()
    stream = published.kernel(core)
    written_ratio = timeline(stream).makespan / 1e6 / published.latency
    played = timeline(stream, schedule=True)
    elapsed = time.perf_counter() - begun
    read, written = traffic(stream)
    latency = played.makespan / 1e6
    traffic_ratio = "     -"
    if published.read is not None and published.written is not None:
        traffic_ratio = f"{(read + written) / (published.read + published.written):6.3f}"
    shares = ", ".join(
        f"{engine} {share:.3f} -> {played.engines[engine]:.3f} "
        f"({played.engines[engine] / share:.2f})"
        for engine, share in published.activity.items()
    )
    ratio = latency / published.latency
    return ratio, (
        f"{name:17s} {'fit' if published.calibrates else '   '} "
        f"{published.latency:7.3f} {latency:7.3f} {ratio:6.3f} {written_ratio:10.3f}   "
        f"{_or_dash(published.read)} {read:6.0f} {_or_dash(published.written)} {written:6.0f} "
        f"{traffic_ratio}   {played.bound:8s} {shares}   "
        f"[{len(stream)} instructions, {elapsed:.1f} s]"
    )


def _or_dash(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.0f}"


def activities(played: Timeline, engine: str) -> dict[str, float]:
    """Share of the time an engine is active: while it issues; while anything is in flight (what the
    timeline reports); the same until others have seen its semaphore.
    """
    mine = played.stream.rows["queue"] == ENGINES.index(engine)
    start, end = played.start[mine], played.end[mine]
    late = end + played.core.semaphore_ns
    reached = np.concatenate([[0.0], np.maximum.accumulate(late)[:-1]])
    return {
        "issuing": float(played.costs.issue[mine].sum()) / played.makespan,
        "in flight": played.engines[engine],
        "signalling": float(np.maximum(0, late - np.maximum(start, reached)).sum())
        / played.makespan,
    }


def print_activities(core: Core) -> None:
    """One line for each published activity, and the mean error of each way to count it."""
    errors: dict[str, list[float]] = {}
    for name, published in PUBLISHED.items():
        played = timeline(published.kernel(core), schedule=True)
        for engine, share in published.activity.items():
            found = activities(played, engine)
            for way, value in found.items():
                errors.setdefault(way, []).append(abs(np.log(value / share)))
            ways = ", ".join(f"{w} {v:.3f} ({v / share:.2f})" for w, v in found.items())
            print(f"{name:17s} {engine:7s} published {share:.3f}: {ways}")
    means = ", ".join(f"{way} {np.exp(np.mean(e)) - 1:.0%}" for way, e in errors.items())
    print(f"mean error: {means}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--activity", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    target = load_target("trn1").with_settings(dict(s.split("=", 1) for s in arguments.set))
    if arguments.calibrate:
        for name, value in calibrate(target).items():
            print(f"{name} = {value}")
        return
    if arguments.activity:
        print_activities(Core.of(target))
        return
    print(
        "kernel                  ms: published simulated ratio as written   "
        "MB read: pub. sim., written: pub. sim., ratio   bound, activity published -> simulated"
    )
    core = Core.of(target)
    errors: dict[bool, list[float]] = {False: [], True: []}
    for name, published in PUBLISHED.items():
        ratio, line = row(name, published, core)
        errors[published.calibrates].append(abs(ratio - 1))
        print(line)
    judged, whole = errors[False], errors[False] + errors[True]
    print(
        f"mean error: {np.mean(judged):.1%} of {len(judged)} that judge, "
        f"{np.mean(whole):.1%} of all {len(whole)}"
    )


if __name__ == "__main__":
    main()
