"""A chip of systolic arrays beside a vector unit, on-chip memory and HBM: a TPU, kernel by kernel.

A product's time, in microseconds, for operands a (m x k), b (k x n) and the result c (m x n):

    latency = floor + sqrt((stream + operands)^2 + result^2) + fill     on the arrays
    latency = floor + passes * pass + bytes / HBM                       on the vector unit

    stream    tiles of the operand that is held, each as long as the rows of the other one, shared
              by all arrays; whichever operand is better held (the compiler's choice)
    operands  their bytes from on-chip memory: what was measured is a kernel's own span, which
              copies into that memory come before. Operands that do not fit come from HBM
    result    its bytes to HBM; it is double-buffered against the rest, imperfectly: the root of
              the sum of squares lies between "one hides the other" and "one after the other"
    fill      the first tiles of a result, which nothing hides: with the shorter of its sides, up
              to `FILL_ROWS`
    passes    a product with a vector (m, n or k is 1) runs on the vector unit. It passes once for
              each axis that exceeds a register's lanes, and for the sum of what remains in one

Matrices take whole registers (lanes x sublanes), the longer way round if that wastes less.

Four constants a machine are calibrated, on a third of published kernels, and are marked so in the
targets (floor, fill, pass, on-chip bandwidth); everything else is from data sheets. The form of the
terms is ours and was chosen with these measurements in view (decision 0160).

Invariant: no fact that makes a chip faster makes a kernel slower (tested).
"""

from dataclasses import dataclass
from math import ceil, hypot

from tilesmith.families.systolic.simulator.products import EqualProducts, products_of
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import Fidelity, OperatorCost, SimulationResult

FILL_ROWS = 512
"""Rows after which a longer result's first tiles cost no more (?, one for all machines)."""

MEASURED = "bfloat16"
"""The type that the arrays multiply, and the only one with measurements."""

SUMMING, ACROSS, ALONG = 1 / 3, 2 / 3, 1.0
"""Passes of the vector unit: a sum within a register's lanes, results beyond the lanes, a sum
beyond the lanes (?, one for all machines)."""


@dataclass(frozen=True)
class KernelTimes:
    """Microseconds of one kernel's parts; `mxu` is what the arrays compute, within `latency_us`."""

    latency_us: float
    mxu: float = 0.0
    vmem: float = 0.0
    hbm: float = 0.0
    vector: float = 0.0
    start: float = 0.0

    @property
    def engines(self) -> dict[str, float]:
        """Share of the time that each part alone would take."""
        parts = {"mxu": self.mxu, "vmem": self.vmem, "hbm": self.hbm, "vector": self.vector}
        return {name: min(1.0, part / self.latency_us) for name, part in parts.items() if part}

    @property
    def bound(self) -> str:
        parts = {**self.engines, "start": self.start / self.latency_us}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class TensorCore:
    """The facts of such a chip: sizes in elements, GB/s, microseconds, bytes."""

    rows: int
    cols: int
    arrays: int
    ghz: float
    lanes: int
    sublanes: int
    vmem_bytes: int
    vmem_gbps: float
    hbm_gbps: float
    floor_us: float
    fill_us: float
    pass_us: float

    @staticmethod
    def describes(target: Target) -> bool:
        """Whether a target is such a chip, and not an array alone."""
        return "hbm.gbps" in target

    @classmethod
    def of(cls, target: Target) -> "TensorCore":
        """The chip a target describes.

        Raises:
            TargetError: a fact is missing.
        """
        return cls(
            rows=target.integer("array.rows"),
            cols=target.integer("array.cols"),
            arrays=target.integer("array.count"),
            ghz=target.number("array.ghz"),
            lanes=target.integer("vpu.lanes"),
            sublanes=target.integer("vpu.sublanes"),
            vmem_bytes=target.integer("vmem.mib") * 2**20,
            vmem_gbps=target.number("vmem.gbps"),
            hbm_gbps=target.number("hbm.gbps"),
            floor_us=target.number("kernel.floor_us"),
            fill_us=target.number("kernel.fill_us"),
            pass_us=target.number("vpu.pass_us"),
        )

    def times(self, workload: Workload) -> KernelTimes:
        """What one run of an operator takes: its products one after the other, two of attention as
        two kernels, a batch as one.

        Raises:
            WorkloadError: it is no matrix product.
        """
        size = size_of(workload.dtype)
        kernels = [self.product(each, size) for each in products_of(workload)]
        return KernelTimes(*(sum(values) for values in zip(*map(_parts, kernels), strict=True)))

    def product(self, product: EqualProducts, size: int) -> KernelTimes:
        """One kernel of `product.count` equal products of elements of `size` bytes."""
        m, n, k = product.m, product.n, product.k
        a, b, c = (
            product.count * size * self._padded(*shape) for shape in ((m, k), (k, n), (m, n))
        )
        if 1 in (m, n, k):
            hbm = (a + b + c) / self.hbm_gbps * 1e-3
            vector = self.pass_us * self._passes(m, n, k)
            latency = self.floor_us + vector + hbm
            return KernelTimes(latency, hbm=hbm, vector=vector, start=self.floor_us)
        cycles = product.count * min(self._stream(m, n, k), self._stream(n, m, k))
        mxu = cycles / (self.arrays * self.ghz * 1e3)
        fits = a + b <= self.vmem_bytes
        vmem = (a + b) / (self.vmem_gbps if fits else self.hbm_gbps) * 1e-3
        hbm = c / self.hbm_gbps * 1e-3
        fill = self.fill_us * min(m, n, FILL_ROWS) / FILL_ROWS
        start = self.floor_us + fill
        return KernelTimes(start + hypot(mxu + vmem, hbm), mxu, vmem, hbm, start=start)

    def _stream(self, streamed: int, held: int, k: int) -> int:
        """Cycles of all arrays together: each tile that is held sees all rows that are streamed."""
        rows = ceil(streamed / self.sublanes) * self.sublanes
        return ceil(k / self.rows) * ceil(held / self.cols) * rows

    def _padded(self, rows: int, columns: int) -> int:
        """Elements of a matrix in whole registers, either axis along the lanes."""
        lanes, sublanes = self.lanes, self.sublanes
        sizes = ((rows, columns), (columns, rows))
        return min(ceil(r / sublanes) * sublanes * ceil(c / lanes) * lanes for r, c in sizes)

    def _passes(self, m: int, n: int, k: int) -> float:
        """Passes of the vector unit over a product with a vector."""
        if k == 1:
            return 0.0 if 1 in (m, n) else float((m > self.lanes) + (n > self.lanes))
        long, deep = max(m, n) > self.lanes, k > self.lanes
        return SUMMING + ACROSS * long + ALONG * deep

    def result(
        self, workload: Workload, target: str, fidelity: Fidelity, traced: bool
    ) -> SimulationResult:
        """The same as a result for readers, with what it rests on."""
        times = self.times(workload)
        cycles, compute = (round(us * self.ghz * 1e3) for us in (times.latency_us, times.mxu))
        narrow = workload.dtype == MEASURED
        precision = MEASURED if narrow else f"{workload.dtype}, products in {MEASURED}"
        notes: tuple[str, ...] = (
            "kernels one after the other; operands that fit on chip are there at a kernel's start; "
            "products in one pass of bfloat16 with sums in float32, whatever the elements' type; "
            "only bfloat16 products were compared with measurements",
        )
        if traced:
            notes += ("no trace is written: a kernel is a closed form",)
        return SimulationResult(
            target=target,
            fidelity=fidelity,
            cycles=max(cycles, 1),
            compute_cycles=compute,
            latency_us=times.latency_us,
            bound=times.bound,
            engines=times.engines,
            ops=(OperatorCost(workload.key, times.latency_us, times.bound),),
            details={"precision": precision},
            notes=notes,
        )


def _parts(times: KernelTimes) -> tuple[float, ...]:
    return times.latency_us, times.mxu, times.vmem, times.hbm, times.vector, times.start
