"""`Core`: the facts of a Trainium-like target that code generation and simulation read, typed.

A target is data by dotted name; this is the same data with units fixed (nanoseconds, bytes),
derived sizes worked out, and anything missing or impossible refused at once. One `Core` is one
NeuronCore.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError

ENGINES = ("tensor", "vector", "scalar", "gpsimd")
"""Compute engines, in the order of their numbers."""

DMA_QUEUES = 32
"""In-order DMA queues a program may use, numbered after the engines. (16 engines have 16 each; more
than one for every tensor and direction buys nothing.)"""

FIRST_DMA_QUEUE = len(ENGINES)
COLLECTIVE_QUEUE = FIRST_DMA_QUEUE + DMA_QUEUES
"""The queue of the core's part in collectives, after those of DMA, whose data it moves as they do:
between tensors in HBM, beside what engines do (A1: CC-cores)."""

QUEUES = COLLECTIVE_QUEUE + 1

ROW_MINIMUM_BYTES = 2048
"""A contiguous run is not split over DMA engines into pieces smaller than this, the least that the
DMA bandwidth guide recommends."""


@dataclass(frozen=True)
class Core:
    """One accelerator core. Build it with `Core.of`.

    Clocks in GHz (cycles per ns), `*_latency` in cycles after issue, sizes in bytes.
    """

    target: Target
    rows: int
    cols: int
    moving_free: int
    clocks: tuple[float, float, float, float]
    latencies: tuple[float, float, float, float]
    minimums: tuple[float, float, float, float]
    fp32_factor: int
    fp32_transpose_factor: int
    fp8_k_max: int
    fp32_pass_overhead: float
    load_stationary_speedup: float
    semaphore_ns: float
    sbuf_partitions: int
    sbuf_bytes: int
    psum_partitions: int
    psum_bytes: int
    psum_banks: int
    dma_engines: int
    dma_bytes_per_ns: float
    dma_row_overhead: float
    dma_start_ns: float
    dma_transfer_floor_ns: float
    hbm_bytes_per_ns: float
    hbm_bytes: int
    exclusive_sbuf: bool
    exclusive_psum: bool

    @classmethod
    def of(cls, target: Target) -> "Core":
        """The core a target describes.

        Raises:
            TargetError: a fact is missing, of the wrong kind, or sizes do not divide.
        """
        if target.family != "trainium":
            raise TargetError(
                f"target '{target.name}' is of family '{target.family}'; "
                "instruction streams need one of family 'trainium'"
            )
        number, integer = target.number, target.integer
        _check_shapes(target)
        return cls(
            target=target,
            rows=integer("tensor.rows"),
            cols=integer("tensor.cols"),
            moving_free=integer("tensor.moving_free"),
            clocks=tuple(number(f"{name}.ghz") for name in ENGINES),  # type: ignore[arg-type]
            latencies=tuple(number(f"{name}.latency") for name in ENGINES),  # type: ignore[arg-type]
            minimums=(
                number("tensor.min_ii"),
                number("vector.min_ii"),
                number("scalar.min_ii"),
                number("gpsimd.start"),
            ),
            fp32_factor=integer("tensor.fp32_factor"),
            fp32_transpose_factor=integer("tensor.fp32_transpose_factor"),
            fp8_k_max=integer("tensor.fp8_k_max"),
            fp32_pass_overhead=number("tensor.fp32_pass_overhead"),
            load_stationary_speedup=number("tensor.load_stationary_speedup"),
            semaphore_ns=number("semaphore.ns"),
            sbuf_partitions=integer("sbuf.partitions"),
            sbuf_bytes=_share(target, "sbuf.mib", 2**20, integer("sbuf.partitions")),
            psum_partitions=integer("psum.partitions"),
            psum_bytes=_share(target, "psum.mib", 2**20, integer("psum.partitions")),
            psum_banks=integer("psum.banks"),
            dma_engines=integer("dma.engines"),
            dma_bytes_per_ns=number("dma.gbps_practical"),
            dma_row_overhead=number("dma.row_overhead_bytes"),
            dma_start_ns=number("dma.start_ns"),
            dma_transfer_floor_ns=number("dma.transfer_floor_ns"),
            hbm_bytes_per_ns=number("hbm.gbps_core"),
            hbm_bytes=integer("hbm.gib_chip") * 2**30 // integer("cores_per_chip"),
            exclusive_sbuf=bool(target.fact("exclusive.vector_gpsimd_sbuf").value),
            exclusive_psum=bool(target.fact("exclusive.vector_scalar_psum").value),
        )

    def transferred_ns(self, work: Any) -> Any:
        """ns from a semaphore to the last byte of a transfer that is `work` ns long, alone."""
        return np.maximum(work, self.dma_transfer_floor_ns) + self.dma_start_ns

    @cached_property
    def bank_bytes(self) -> int:
        """Bytes of a PSUM bank in one partition."""
        return self.psum_bytes // self.psum_banks

    @cached_property
    def peak_flops_per_ns(self) -> float:
        """Floating-point operations per ns of the tensor engine in bf16 (a multiply-add is two)."""
        return 2.0 * self.rows * self.cols * self.clocks[0]


def _check_shapes(target: Target) -> None:
    """Sizes that must fit each other: no tile could be placed otherwise.

    Raises:
        TargetError: naming the fact, its value and the allowed range.
    """
    limits = (
        ("tensor.rows", "sbuf.partitions", "an operand's rows stand on partitions"),
        ("tensor.cols", "psum.partitions", "a result's rows stand on partitions"),
    )
    for name, other, why in limits:
        value, limit = target.integer(name), target.integer(other)
        if value > limit:
            raise TargetError(
                f"target '{target.name}': {name} = {value} is out of range; "
                f"allowed: 1 to {limit} ({other}: {why})"
            )
    rows, cols = target.integer("tensor.rows"), target.integer("tensor.cols")
    if rows != cols:
        raise TargetError(
            f"target '{target.name}': tensor.rows = {rows} is out of range; "
            f"allowed: {cols} (tensor.cols: a transpose swaps them)"
        )
    share = _share(target, "psum.mib", 2**20, target.integer("psum.partitions"))
    if share % (4 * target.integer("psum.banks")):
        raise TargetError(
            f"target '{target.name}': psum.banks = {target.integer('psum.banks')} is out of range; "
            f"allowed: divisors of {share // 4}, the fp32 numbers of a partition"
        )


def _share(target: Target, name: str, unit: int, parts: int) -> int:
    """Bytes of a memory in each of its partitions."""
    share, rest = divmod(target.integer(name) * unit, parts)
    if rest:
        raise TargetError(
            f"target '{target.name}': {name} = {target.integer(name)} does not divide into "
            f"{parts} partitions"
        )
    return share


def queue_name(queue: int) -> str:
    """The name of an engine or DMA queue by number."""
    if queue == COLLECTIVE_QUEUE:
        return "cc"
    return ENGINES[queue] if queue < len(ENGINES) else f"dma{queue - FIRST_DMA_QUEUE}"
