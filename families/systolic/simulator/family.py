"""A plain systolic array: compute cycles of a tiled matrix product, fold by fold.

The array of R x C processing elements holds one operand still (`dataflow`: weight-, input- or
output-stationary) and streams the others through. What does not fit is cut into folds, one after
the other; each fills the array, streams, and drains diagonally. Summed over the folds this is the
closed form of SCALE-Sim 3.0's compute cycles (ideal memory), which the tests compare with.

    weight-stationary   rows hold K, columns N, M streams
    input-stationary    rows hold K, columns M, N streams
    output-stationary   rows hold M, columns N, K streams

Area and power are those of processing elements for bfloat16, and of the memories:

    array   rows x cols multiply-adds
    sbuf    its bits, in partitions; a row and a column of operands a cycle
    psum    its bits twice (it adds in place); a column of float32 sums a cycle

Constants are those of `simulator.designs.hardware_cost`. Invariant: a fact that makes an array
larger or faster never makes it cheaper (tested).

A target that names an HBM is a whole chip and is timed by `tensor_core.py` instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilesmith.families.systolic.simulator.products import products_of
from tilesmith.families.systolic.simulator.tensor_core import TensorCore
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.designs import hardware_cost as cost
from tilesmith.simulator.dispatch import (
    FamilySimulator,
    Fidelity,
    OperatorCost,
    SimulationResult,
    simulators,
)

NOMINAL_GHZ = 1.0
"""(?)"""


def hardware_cost(target: Target) -> cost.HardwareCost:
    """Area (mm2) and power (W) of one array with its memories."""
    integer, ghz = target.integer, target.number("array.ghz")
    rows, cols = integer("array.rows"), integer("array.cols")
    energy = cost.OPERATION_PJ["bfloat16"] * cost.REGISTERS * cost.overdrive(ghz, NOMINAL_GHZ)
    area = rows * cols * cost.OPERATION_UM2["bfloat16"] * cost.REGISTERS / 1e6
    sbuf, psum = integer("sbuf.mib") * 2**20, integer("psum.mib") * 2**20
    operands = 2 * (rows + cols) * ghz * cost.memory_pj_a_byte(sbuf / integer("sbuf.partitions"))
    sums = 2 * 4 * cols * ghz * cost.memory_pj_a_byte(psum / integer("sbuf.partitions"))
    return cost.HardwareCost(
        (
            cost.PartCost.of("array", area, rows * cols * ghz * energy * 1e-3),
            cost.PartCost.of("sbuf", cost.memory_mm2(sbuf), operands * 1e-3),
            cost.PartCost.of("psum", 2 * cost.memory_mm2(psum), sums * 1e-3),
        ),
        "array",
    )


@dataclass(frozen=True)
class _Fold:
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
    def of(cls, target: Target) -> "Array":
        """The array a target of family "systolic" describes."""
        return cls(
            target.integer("array.rows"), target.integer("array.cols"), target.text("dataflow")
        )

    def mapping(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """(what rows hold, what columns hold, what streams) of an m x n x k product."""
        return {"ws": (k, n, m), "is": (k, m, n), "os": (m, n, k)}[self.dataflow]

    def folds(self, m: int, n: int, k: int) -> list[_Fold]:
        """Every fold of one product. The array works at full size in each, as SCALE-Sim's does."""
        held_rows, held_cols, stream = self.mapping(m, n, k)
        count = -(-held_rows // self.rows) * -(-held_cols // self.cols)
        fill = 0 if self.dataflow == "os" else self.rows
        return [_Fold(fill, stream, self.rows + self.cols - 2)] * count

    def cycles(self, m: int, n: int, k: int) -> int:
        """Compute cycles of one product (SCALE-Sim counts the first as cycle 0)."""
        folds = self.folds(m, n, k)
        return len(folds) * folds[0].cycles - 1


class SystolicSimulator(FamilySimulator):
    """Simulates targets of family "systolic". Every fidelity is the same closed form: exact for an
    array alone, calibrated for a chip with memories.
    """

    def check(self, target: Target) -> None:
        """Raise `TargetError` unless the target has all that is read of it."""
        Array.of(target)
        if TensorCore.describes(target):
            TensorCore.of(target)
        target.number("array.ghz")

    def hardware_cost(self, target: Target) -> cost.HardwareCost:
        if TensorCore.describes(target):
            return super().hardware_cost(target)
        return hardware_cost(target)

    def covers(self, workload: Workload) -> bool:
        """Whether an operator can be simulated (a schedule is not needed)."""
        try:
            return bool(products_of(workload))
        except WorkloadError:
            return False

    def judge(self, workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        """All configurations cost the same: dataflow and size belong to the target, and a chip's
        compiler chooses its tiles itself.
        """
        if TensorCore.describes(target):
            times = TensorCore.of(target).times(workload)
            seconds, bound = times.latency_us * 1e-6, times.bound
        else:
            seconds, bound = _cycles(workload, Array.of(target)), "array"
            seconds /= target.number("array.ghz") * 1e9
        cycles = seconds * target.number("array.ghz") * 1e9
        features = np.full((len(configs), 1), np.log2(cycles + 1), dtype=np.float32)
        return Judgement(np.full(len(configs), seconds), features, [bound] * len(configs), (0,))

    def simulate(
        self,
        workload: Workload,
        target: Target,
        config: Config | None,
        fidelity: Fidelity,
        trace: Path | None,
    ) -> SimulationResult:
        """What one run takes; of an array alone, compute cycles with ideal memory. A trace is not
        written.
        """
        if TensorCore.describes(target):
            return TensorCore.of(target).result(workload, target.name, fidelity, trace is not None)
        array = Array.of(target)
        products = products_of(workload)
        cycles = _cycles(workload, array)
        latency = cycles / (target.number("array.ghz") * 1e3)
        folds = sum(p.count * len(array.folds(p.m, p.n, p.k)) for p in products)
        useful = sum(p.count * p.m * p.n * p.k for p in products) / (array.rows * array.cols)
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


simulators.register("systolic")(SystolicSimulator())


def _cycles(workload: Workload, array: Array) -> int:
    return sum(p.count * array.cycles(p.m, p.n, p.k) for p in products_of(workload))
