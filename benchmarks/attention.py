"""Attention on this CPU: one kernel against two products and a softmax, timed in turns.

    python benchmarks/attention.py [--only NAME ...] [--seconds-each 0] [--json]

Sizes are queries x keys x features, and heads. Either way starts from the same queries, keys and
values on one pinned core; the three kernels hand their scores on. All schedules are the defaults,
or tuned for `--seconds-each` a kernel (three times as long for the one that is fused). The ratio is
the fused kernel's median time over that of the three; models are compiled with it where the last
column says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tilesmith
from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.codegen.native.kernel import NativeKernel, compile_config
from tilesmith.codegen.programs.structures import default_of
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.attention import pays
from tilesmith.search_space.workloads.workload import Workload

CASES = {
    "encoder 128x128x32, 12": (128, 128, 32, 12),
    "BERT 128x128x64, 12": (128, 128, 64, 12),
    "BERT 384x384x64, 12": (384, 384, 64, 12),
    "ViT 197x197x64, 12": (197, 197, 64, 12),
    "Swin 49x49x32, 12": (49, 49, 32, 12),
    "Swin 49x49x32, 192": (49, 49, 32, 192),
    "Whisper 1500x1500x64, 6": (1500, 1500, 64, 6),
    "decoding 1x1024x64, 12": (1, 1024, 64, 12),
    "DETR 100x625x32, 8": (100, 625, 32, 8),
    "diffusion 1024x1024x80, 8": (1024, 1024, 80, 8),
    "diffusion 1024x77x80, 8": (1024, 77, 80, 8),
    "pyramid 3136x49x64, 1": (3136, 49, 64, 1),
}
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Figure:
    """Medians of one case in microseconds, and whether models fuse it."""

    fused_us: float
    parts_us: float
    used: bool

    @property
    def ratio(self) -> float:
        return self.fused_us / self.parts_us


def workloads(m: int, n: int, k: int, heads: int) -> list[Workload]:
    """The fused kernel, and the three in order."""
    batch = f"batch={heads}"
    scale = f"{k**-0.5:.9g}"
    texts = (
        f"attention m={m} n={n} k={k} heads={heads} scale={scale}",
        f"matmul m={m} n={n} k={k} {batch} tb=1 epilogue=multiply_constant:{scale}",
        f"softmax shape={heads * m}x{n}",
        f"matmul m={m} n={k} k={n} {batch}",
    )
    return [Workload.parse(text) for text in texts]


def kernels(found: list[Workload], target: Target, seconds: float) -> list[NativeKernel]:
    """Compiled with default schedules, or tuned from an empty database."""
    made = []
    for workload in found:
        config = default_of(workload, target)
        if seconds:
            limit = seconds * 3 if workload.operator == "attention" else seconds
            with tempfile.TemporaryDirectory() as folder:
                report = tilesmith.tune(workload, target, Path(folder) / "t.db", time_limit=limit)
            config = report.tasks[0].config or config
        made.append(compile_config(workload, target, config))
    return made


def contenders(
    made: list[NativeKernel], sizes: tuple[int, int, int, int]
) -> list[Callable[[], None]]:
    """A call of the fused kernel, and one of the three that reads and writes the same tensors."""
    m, n, k, heads = sizes
    rng = np.random.default_rng(0)

    def tensor(rows: int, columns: int) -> Array:
        made = aligned_empty((heads, rows, columns), np.dtype(np.float32))
        made[...] = rng.standard_normal(made.shape)
        return made

    q, key, v, y = tensor(m, k), tensor(n, k), tensor(n, k), tensor(m, k)
    scores, weights = tensor(m, n), tensor(m, n)
    operands = (
        {"q": q, "k": key, "v": v, "y": y},
        {"a": q, "b": key, "out": scores},
        {"x": scores, "y": weights},
        {"a": weights, "b": v, "c": y},
    )
    fused, *parts = (kernel.bind(given) for kernel, given in zip(made, operands, strict=True))

    def three() -> None:
        for part in parts:
            part()

    return [fused, three]


def measure(sizes: tuple[int, int, int, int], seconds: float) -> Figure:
    target = resolve_target("cpu", None)
    found = workloads(*sizes)
    made = kernels(found, target, seconds)
    fused, three = contenders(made, sizes)
    with pinned(1):
        timings = interleave({"fused": fused, "three": three})
    medians = [timings[name].median_ms * 1e3 for name in ("fused", "three")]
    return Figure(*medians, pays(found[0], target))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds-each", type=float, default=0.0, help="tuning time of a kernel")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures: dict[str, Figure] = {}
    for name in options.only:
        figures[name] = measure(CASES[name], options.seconds_each)
        note(f"{name}: {figures[name].ratio:.3f}")
    if options.json:
        print(json.dumps({name: vars(figure) for name, figure in figures.items()}, indent=2))
        return 0
    rows = [
        (
            name,
            f"{f.fused_us:.1f}",
            f"{f.parts_us:.1f}",
            f"{f.ratio:.3f}",
            "yes" if f.used else "no",
        )
        for name, f in figures.items()
    ]
    print(table(("attention", "fused us", "three us", "ratio", "in models"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
