"""A plain systolic array: compute cycles of a tiled matrix product, fold by fold.

The array of R x C processing elements holds one operand still (`dataflow`: weight-, input- or
output-stationary) and streams the others through. What does not fit is cut into folds, one after
the other; each fills the array, streams, and drains diagonally. Summed over the folds this is the
closed form of SCALE-Sim 3.0's compute cycles (ideal memory), which the tests compare with.

    weight-stationary   rows hold K, columns N, M streams
    input-stationary    rows hold K, columns M, N streams
    output-stationary   rows hold M, columns N, K streams
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from search_space.config import Config
from search_space.errors import WorkloadError
from search_space.target import Target
from search_space.workload import Workload
from simulator.dispatch import (
    Fidelity,
    Judgement,
    OperatorCost,
    SimulationResult,
    simulators,
)


@dataclass(frozen=True)
class Fold:
    """One pass of the array, in cycles.

    Attributes:
        fill: loading what is held still, one row a cycle (0 where results are held).
        stream: one element of the streamed axis a cycle.
        skew: the diagonal wave through rows and columns, in and out.
    """

    fill: int
    stream: int
    skew: int

    @property
    def cycles(self) -> int:
        return self.fill + self.stream + self.skew


@dataclass(frozen=True)
class Array:
    """An array of processing elements with a dataflow ("ws", "is" or "os")."""

    rows: int
    cols: int
    dataflow: str

    @classmethod
    def of(cls, target: Target) -> Array:
        """The array a target of family "systolic" describes."""
        return cls(
            target.integer("array.rows"), target.integer("array.cols"), target.text("dataflow")
        )

    def mapping(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """(what rows hold, what columns hold, what streams) of an m x n x k product."""
        return {"ws": (k, n, m), "is": (k, m, n), "os": (m, n, k)}[self.dataflow]

    def folds(self, m: int, n: int, k: int) -> list[Fold]:
        """Every fold of one product. The array works at full size in each, as SCALE-Sim's does."""
        held_rows, held_cols, stream = self.mapping(m, n, k)
        count = -(-held_rows // self.rows) * -(-held_cols // self.cols)
        fill = 0 if self.dataflow == "os" else self.rows
        return [Fold(fill, stream, self.rows + self.cols - 2)] * count

    def cycles(self, m: int, n: int, k: int) -> int:
        """Compute cycles of one product (SCALE-Sim counts the first as cycle 0)."""
        folds = self.folds(m, n, k)
        return len(folds) * folds[0].cycles - 1


def product_of(workload: Workload) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of an operator that is a matrix product.

    Raises:
        WorkloadError: it is none.
    """
    if workload.operator == "matmul":
        m, n, k, batch = (workload.integer(name) for name in ("m", "n", "k", "batch"))
        return batch, m, n, k
    raise WorkloadError(
        f"a systolic array simulates matrix products; operator '{workload.operator}' is none, "
        "use matmul"
    )


@simulators.register("systolic")
class SystolicSimulator:
    """Simulates targets of family "systolic". Every fidelity is the same: the closed form is
    exact.
    """

    @staticmethod
    def judge(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """All configurations cost the same: dataflow and size belong to the target."""
        cycles = _cycles(workload, Array.of(target))
        seconds = cycles / (target.number("array.ghz") * 1e9)
        features = np.full((len(configs), 1), np.log2(cycles + 1), dtype=np.float32)
        return Judgement(np.full(len(configs), seconds), features, ["array"] * len(configs), (0,))

    @staticmethod
    def simulate(
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """Compute cycles with ideal memory; a trace is not written."""
        array = Array.of(target)
        batch, m, n, k = product_of(workload)
        cycles = _cycles(workload, array)
        latency = cycles / (target.number("array.ghz") * 1e3)
        folds = len(array.folds(m, n, k)) * batch
        useful = batch * m * n * k / (array.rows * array.cols)
        details = {
            "dataflow": array.dataflow,
            "folds": folds,
            "utilization": useful / cycles,
        }
        notes: tuple[str, ...] = ("memory is ideal: cycles are compute cycles",)
        if trace is not None:
            notes += ("no trace is written: every fold of a systolic array is alike",)
        return SimulationResult(
            target=target.name,
            fidelity=fidelity,
            cycles=cycles,
            compute_cycles=cycles,
            latency_us=latency,
            bound="array",
            engines={"array": 1.0},
            ops=(OperatorCost(workload.key, latency, "array", {"compute_cycles": cycles}),),
            details=details,
            notes=notes,
        )


def _cycles(workload: Workload, array: Array) -> int:
    batch, m, n, k = product_of(workload)
    return batch * array.cycles(m, n, k)
