"""Matrix products on TPU v4 and v6e: simulated beside the kernels that were measured.

    python -m benchmarks.accelerator.tpu_kernels [--calibrate] [--worst N]

Measurements are those of `tpu/README.md`. Every third row of `gemm_*.csv` calibrated the targets'
four constants, the others are held out; `further_*.csv` was judged after the model was settled.
`--calibrate` fits the four again and prints them; `--worst` lists the rows that are most off.
"""

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import differential_evolution

from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

ROWS = Path(__file__).parent / "tpu"
CALIBRATED = {
    "kernel.floor_us": (0.5, 1.6),
    "vpu.pass_us": (0.0, 3.0),
    "vmem.gbps": (1e3, 2e4),
    "kernel.fill_us": (0.0, 4.0),
}
"""The four facts that are fitted, and the range in which they are sought."""


@dataclass(frozen=True)
class Measured:
    """One kernel and the microseconds that it took."""

    m: int
    n: int
    k: int
    dtype: str
    us: float

    @property
    def vector(self) -> bool:
        """Whether it is a product with a vector."""
        return 1 in (self.m, self.n, self.k)

    def off(self, target: Target) -> float:
        """Simulated over measured, less one."""
        text = f"matmul m={self.m} n={self.n} k={self.k} dtype={self.dtype}"
        return simulate(Workload.parse(text), target).latency_us / self.us - 1


def measured(name: str) -> list[Measured]:
    """The rows of a file."""
    with (ROWS / f"{name}.csv").open() as file:
        return [
            Measured(int(r["m"]), int(r["n"]), int(r["k"]), r["dtype"], float(r["us"]))
            for r in csv.DictReader(file)
        ]


CLASSES = {
    "with a vector": lambda row: row.vector,
    "below 2 us": lambda row: not row.vector and row.us < 2,
    "2 to 10 us": lambda row: not row.vector and 2 <= row.us < 10,
    "10 us and more": lambda row: not row.vector and row.us >= 10,
    "all": lambda row: True,
}


def mean_error(rows: list[Measured], target: Target) -> float:
    """The mean of the errors' absolute values."""
    return float(np.mean([abs(row.off(target)) for row in rows]))


def calibrated(rows: list[Measured], target: Target) -> dict[str, float]:
    """The four constants with the least mean error over some rows."""

    def settings(values: np.ndarray) -> dict[str, str]:
        return {name: repr(float(v)) for name, v in zip(CALIBRATED, values, strict=True)}

    def error(values: np.ndarray) -> float:
        return mean_error(rows, target.with_settings(settings(values)))

    bounds = list(CALIBRATED.values())
    best = differential_evolution(error, bounds, rng=np.random.default_rng(1), maxiter=20)
    return dict(zip(CALIBRATED, best.x.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--worst", type=int, default=0)
    asked = parser.parse_args()
    for chip in ("v4", "v6e"):
        target, rows = load_target(f"tpu_{chip}"), measured(f"gemm_{chip}")
        held = [row for place, row in enumerate(rows) if place % 3]
        if asked.calibrate:
            print(f"tpu_{chip}", calibrated(rows[::3], target))
        print(f"tpu_{chip:5} {'mean error of':20} calibrated     held out       further")
        parts = (rows[::3], held, measured(f"further_{chip}"))
        for name, belongs in CLASSES.items():
            of = [[row for row in part if belongs(row)] for part in parts]
            told = [f"{mean_error(p, target):6.1%} of {len(p):3}" if p else "" for p in of]
            print(f"{'':10} {name:20} " + "  ".join(f"{text:13}" for text in told))
        for row in sorted(held, key=lambda row: -abs(row.off(target)))[: asked.worst]:
            print(f"{'':10} {row}: {row.off(target):+.0%}")


if __name__ == "__main__":
    main()
