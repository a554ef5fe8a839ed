"""One kernel for every size of a range against kernels compiled for each size exactly.

    python benchmarks/varying_sizes.py [--only NAME ...] [--seconds-each 0.5] [--least] [--json]

A kernel of each case is compiled once, its sizes left open, with the default configuration at the
typical sizes. At each size it is timed in turns, on one pinned core, with the kernel of the same
configuration compiled for that size alone, and with that of the size's own default. The figures are
how many times as long it takes: of medians, or of the least times where other work disturbs them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from subjects.bound_kernels import SIZES, VaryingKernel, bound

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import KernelSpec, default_of
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Case:
    """A symbolic workload, the most and the typical of its one size, and where it is timed."""

    workload: str
    most: int
    typical: int
    at: tuple[int, ...]


_SEQUENCES = (1, 8, 16, 23, 32, 48, 61, 64, 97, 128, 160, 197, 256, 384, 509, 512)
CASES = {
    "matmul rows": Case("matmul m=[s] n=768 k=768 const=b", 512, 128, _SEQUENCES),
    "matmul rows gelu": Case(
        "matmul m=[s] n=3072 k=768 const=b epilogue=bias,gelu", 512, 128, _SEQUENCES
    ),
    "scores": Case("matmul m=[s] n=[s] k=64 batch=12 tb=1", 512, 128, _SEQUENCES),
    "scores by values": Case("matmul m=[s] n=64 k=[s] batch=12", 512, 128, _SEQUENCES),
    "layer_norm": Case("layer_norm shape=[s]x768", 512, 128, _SEQUENCES),
    "softmax": Case("softmax shape=12x[s]x[s]", 512, 128, _SEQUENCES),
    "attention": Case("attention m=[s] n=[s] k=64 heads=12 mask=row", 512, 128, _SEQUENCES),
    "elementwise": Case("elementwise shape=[s]x768 expression=add(x0,x1)", 512, 128, _SEQUENCES),
    "gelu": Case("elementwise shape=12x[s] expression=gelu(x0)", 2048, 128, _SEQUENCES),
}


def bound_at(
    kernel: VaryingKernel, workload: Workload, sizes: Mapping[str, int]
) -> Callable[[], None]:
    """A call of a kernel that keeps sizes, at some of them, on seeded random arrays."""
    rng = np.random.default_rng(0)
    arrays = {
        operand.name: aligned_copy(
            rng.standard_normal(operand.shape).astype(to_numpy(operand.dtype))
        )
        for operand in template_of(workload.operator).operands(workload)
    }
    arrays |= kernel.prepare(arrays)
    arrays |= {kernel.output.name: kernel.output_at(sizes), SIZES: kernel.values(sizes)}
    return kernel.bind(arrays)


def measure(case: Case, seconds: float, least: bool) -> list[dict[str, float]]:
    """For each size: milliseconds, and how many times those of the exact kernels they are."""
    workload, target = Workload.parse(case.workload), host_target()
    (name,) = workload.sizes
    typical = {name: case.typical}
    config = default_of(workload.at(typical), target)
    sizes = (Size(name, 1, case.most),)
    varying = VaryingKernel(KernelSpec(workload, target, config, sizes, typical))
    found = []
    for size in case.at:
        exact = workload.at({name: size})
        contenders = {"varying": bound_at(varying, exact, {name: size})}
        contenders["own"] = bound(compile_config(exact, target, default_of(exact, target)))
        with suppress(ConfigError):  # tiles larger than the size
            contenders["same"] = bound(compile_config(exact, target, config))
        with pinned(1):
            timings = interleave(contenders, seconds)
        taken = {n: t.min_ms if least else t.median_ms for n, t in timings.items()}
        row = {"size": size, "ms": taken["varying"], "own": taken["varying"] / taken["own"]}
        found.append(row | ({"same": taken["varying"] / taken["same"]} if "same" in taken else {}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--seconds-each", type=float, default=0.5)
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.only:
        figures[name] = measure(CASES[name], options.seconds_each, options.least)
        if options.json:
            continue
        note(f"{name}: {CASES[name].workload}, tuned at {CASES[name].typical}")
        rows = [
            (
                f["size"],
                f"{f['ms']:.4f}",
                f"{f['own']:.2f}",
                f"{f['same']:.2f}" if "same" in f else "",
            )
            for f in figures[name]
        ]
        print(table(("size", "ms", "of its own default", "of the same exactly"), rows))
    if options.json:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
