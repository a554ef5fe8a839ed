"""Rows with values between their instructions in SBUF and in PSUM: the best schedule of either.

    python benchmarks/accelerator/rows.py [--target trn2]

One line an operator: the default's latency (timeline, us) and what binds it, the best schedule with
values in SBUF alone, the best with some in PSUM, and the roofline.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

OPERATORS = (
    "softmax shape=4096x4096",
    "softmax shape=4096x4096 dtype=bfloat16",
    "softmax shape=4096x1024 dtype=bfloat16",
    "layer_norm shape=128x768",
    "layer_norm shape=4096x768",
    "layer_norm shape=4096x2048",
    "layer_norm shape=4096x2048 dtype=bfloat16",
    "layer_norm shape=4096x1024 epilogue=residual dtype=bfloat16",
    "rms_norm shape=128x4096 dtype=bfloat16",
    "rms_norm shape=4096x2048",
    "rms_norm shape=4096x2048 dtype=bfloat16",
    "rms_norm shape=4096x4096 dtype=bfloat16",
    "elementwise shape=128x4096 expression=multiply(silu(x0),x1) dtype=bfloat16",
    "elementwise shape=4096x4096 expression=multiply(gelu_tanh(x0),x1) dtype=bfloat16",
    "elementwise shape=1024x1024 expression=multiply(x0,tanh(multiply(sigmoid(x0),x1)))",
)


def best(workload: Workload, target: Target, configs: Iterable[Config]) -> str:
    """The least latency of some schedules; those of fewer columns than usual are left out."""
    usual = [c for c in configs if c.integer("columns") in (1, 2048)]
    found = [simulate(workload, target, c, "timeline").latency_us for c in usual]
    return f"{min(found):7.1f}" if found else "      -"


def line(text: str, target: Target) -> str:
    """What is printed of one operator."""
    workload = Workload.parse(text)
    default = simulate(workload, target, None, "timeline")
    roofline = simulate(workload, target, None, "roofline")
    configs = list(space_of(workload, target))
    sbuf, psum = (
        best(workload, target, [c for c in configs if c.text("algorithm") == name])
        for name in ("rows", "psum")
    )
    return (
        f"{text:82s} default {default.latency_us:7.1f}, bound by {default.bound:15s} "
        f"SBUF {sbuf}, PSUM {psum}, roofline {roofline.latency_us:7.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="rows in SBUF and PSUM")
    parser.add_argument("--target", default="trn1")
    target = load_target(parser.parse_args().target)
    for text in OPERATORS:
        print(line(text, target), flush=True)


if __name__ == "__main__":
    main()
