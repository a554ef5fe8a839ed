"""The roofline of an LPU-like chip, in closed form: MXM's peak, and what MEM gives and takes.

Targets that say no more than that (`peak.tflops_fp8`, `sram.tbps`) have nothing but a roofline:
what is known of a chip whose slices and clock are not public.
"""

from dataclasses import dataclass

from tilesmith.families.kit.simulation.compulsory import compulsory_bytes
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.schedules.building_blocks.machine import has_slices
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

PRODUCTS = ("matmul", "conv2d", "attention")
"""Operators whose operations MXM does."""

BYTE_TYPES = ("int8", "uint8", "float8_e4m3", "float8_e5m2")


@dataclass(frozen=True)
class Roofline:
    """Times in seconds; `cycles` of a clock that may be unknown (then of 1 GHz)."""

    compute: float
    memory: float
    ghz: float

    @property
    def latency(self) -> float:
        return max(self.compute, self.memory)

    @property
    def bound(self) -> str:
        return "mxm" if self.compute >= self.memory else "mem"

    def cycles(self, seconds: float) -> int:
        return round(seconds * self.ghz * 1e9)


def roofline(workload: Workload, target: Target) -> Roofline:
    """The least time that any program of a workload takes."""
    flops = template_of(workload.operator).flops(workload)
    if has_slices(target):
        chip = Chip.of(target)
        rate, bandwidth, ghz = chip.peak_flops(workload.dtype), chip.bytes_per_second, chip.ghz
    else:
        share = 1.0 if workload.dtype in BYTE_TYPES else target.number("peak.fp16_share")
        rate, ghz = target.number("peak.tflops_fp8") * 1e12 * share, 1.0
        bandwidth = target.number("sram.tbps") * 1e12
    compute = flops / rate if workload.operator in PRODUCTS else 0.0
    return Roofline(compute, compulsory_bytes(workload) / bandwidth, ghz)


def check_roofline(target: Target) -> None:
    """Raise `TargetError` unless all facts are there."""
    for name in ("peak.tflops_fp8", "peak.fp16_share", "sram.tbps", "sram.mb"):
        target.number(name)
