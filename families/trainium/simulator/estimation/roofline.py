"""The roofline: the least time any program of a workload can take on a core, in closed form.

The larger of the compulsory traffic at the DMA engines' (or HBM's) bandwidth and the workload's
operations at the peak of the engine that does them; plus the start time of one load and of one
store, which nothing hides (of a copy only the load's: its stores may start while loads go on; nor
where more is stored than loaded: DMA then ends with stores that hide each other's starts).
Every program is slower, which the tests check.
"""

from dataclasses import dataclass

from tilesmith.families.kit.simulation.compulsory import compulsory_bytes, nbytes_of
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

PRODUCTS = ("matmul", "conv2d", "attention")
"""Operators whose operations the tensor engine does."""


@dataclass(frozen=True)
class _Roofline:
    """Times in ns."""

    compute: float
    memory: float
    start: float

    @property
    def latency(self) -> float:
        return max(self.compute, self.memory) + self.start

    @property
    def bound(self) -> str:
        return "tensor" if self.compute >= self.memory else "dma"


def roofline(workload: Workload, core: Core) -> _Roofline:
    """The roofline of a workload."""
    flops = template_of(workload.operator).flops(workload)
    compute = 0.0
    if workload.operator in PRODUCTS:
        factor = core.fp32_factor if workload.dtype == "float32" else 1
        compute = flops * factor / core.peak_flops_per_ns
    bandwidth = min(core.dma_engines * core.dma_bytes_per_ns, core.hbm_bytes_per_ns)
    memory, start = compulsory_bytes(workload) / bandwidth, core.dma_start_ns
    if not flops:
        return _Roofline(compute, memory, start)
    stored = nbytes_of(template_of(workload.operator).output(workload)) / bandwidth
    hidden = min(start, max(0.0, 2 * stored - max(compute, memory)))
    return _Roofline(compute, memory, 2 * start - hidden)
