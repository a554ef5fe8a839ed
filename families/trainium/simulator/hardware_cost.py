"""Area and power of a core of family "trainium", out of what its target says there is.

    tensor          rows x cols processing elements for bfloat16, a multiply-add a cycle each
    vector, scalar  a lane of float32 for each partition of SBUF and element a cycle
    gpsimd          processors of 512 bits: 8 x 16 lanes of float32
    sbuf            its bits; the tensor engine reads a column of operands, each lane moves up to
                    three elements a cycle
    psum            its bits twice (it adds in place: a read and a write port); a column of sums a
                    cycle
    dma             an engine each, with buffers of 64 KiB; what HBM gives, in and out of SBUF
    hbm, link       interfaces by bandwidth, the chip's share of one core
    control         instruction queues and semaphores

Constants are those of `simulator.hardware_cost`. Invariant: a fact that makes a core larger or
faster never makes it cheaper (tested).
"""

import math
from collections.abc import Mapping

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.simulator.designs.hardware_cost import (
    HBM_MM2_A_GBPS,
    HBM_PJ_A_BYTE,
    LINK_MM2_A_GBPS,
    LINK_PJ_A_BYTE,
    OPERATION_PJ,
    OPERATION_UM2,
    REGISTERS,
    HardwareCost,
    PartCost,
    memory_mm2,
    memory_pj_a_byte,
    overdrive,
)

NOMINAL_GHZ = {"tensor": 2.8, "vector": 1.12, "scalar": 1.4, "gpsimd": 1.4}
"""Clocks that the process reaches at its nominal voltage: those of NeuronCore-v2 (A1 [V])."""

GPSIMD_LANES = 8 * 16
"""Of float32 (A1 [V]: 8 processors of 512 bits)."""

DMA_BUFFER_BYTES = 64 * 1024
DMA_LOGIC_MM2 = 0.05
CONTROL_MM2 = 2.0
"""Assumed (?)."""

LANE_BYTES = 3 * 4
"""Two operands and a result of float32."""


def hardware_cost(target: Target) -> HardwareCost:
    """Area (mm2) and power (W) of one core, its share of the chip's interfaces included."""
    core = Core.of(target)
    return HardwareCost(
        (
            _tensor(core, target),
            *_lanes(core, target),
            *_memories(core, target),
            _dma(core),
            _interface("hbm", core.hbm_bytes_per_ns, HBM_MM2_A_GBPS, HBM_PJ_A_BYTE),
            _interface(
                "link",
                target.number("link.gbps_chip") / target.integer("cores_per_chip"),
                LINK_MM2_A_GBPS,
                LINK_PJ_A_BYTE,
            ),
            PartCost.of("control", CONTROL_MM2, 0.0),
        )
    )


def array_settings(
    target: Target, settings: Mapping[str, str | FactValue]
) -> dict[str, str | FactValue]:
    """Settings with what a tensor engine of another size takes with it, where that is not set, too:
    the other side (a transpose swaps them), partitions to stand on, and banks as deep as before.

    Before: tensor.rows = 256. After: also tensor.cols, sbuf.partitions and psum.partitions = 256,
    and twice the psum.mib.
    """
    completed = dict(settings)
    asked = completed.get("tensor.rows", completed.get("tensor.cols"))
    if asked is None or not str(asked).isdecimal():
        return completed
    side = int(str(asked))
    for name in ("tensor.rows", "tensor.cols"):
        completed.setdefault(name, side)
    for name in ("sbuf.partitions", "psum.partitions"):
        if side > target.integer(name):
            completed.setdefault(name, side)
    grown = int(str(completed.get("psum.partitions", 0))) / target.integer("psum.partitions")
    if grown > 1:
        completed.setdefault("psum.mib", math.ceil(target.integer("psum.mib") * grown))
    return completed


def _tensor(core: Core, target: Target) -> PartCost:
    ghz = target.number("tensor.ghz")
    elements = core.rows * core.cols
    area = elements * OPERATION_UM2["bfloat16"] * REGISTERS / 1e6
    energy = OPERATION_PJ["bfloat16"] * REGISTERS * overdrive(ghz, NOMINAL_GHZ["tensor"])
    return PartCost.of("tensor", area, elements * ghz * energy * 1e-3)


def _lanes(core: Core, target: Target) -> list[PartCost]:
    counts = {
        "vector": core.sbuf_partitions * target.integer("vector.per_lane_other"),
        "scalar": core.sbuf_partitions,
        "gpsimd": GPSIMD_LANES,
    }
    costs = []
    for name, lanes in counts.items():
        ghz = target.number(f"{name}.ghz")
        area = lanes * OPERATION_UM2["float32"] * REGISTERS / 1e6
        energy = OPERATION_PJ["float32"] * REGISTERS * overdrive(ghz, NOMINAL_GHZ[name])
        costs.append(PartCost.of(name, area, lanes * ghz * energy * 1e-3))
    return costs


def _memories(core: Core, target: Target) -> list[PartCost]:
    """SBUF and PSUM: every partition is a memory of its own."""
    number = target.number
    lanes = sum(number(f"{name}.ghz") for name in ("vector", "scalar")) * LANE_BYTES
    moving = core.rows * 2 * number("tensor.ghz")
    sums = 2 * 4 * core.cols * number("tensor.ghz")
    sbuf = core.sbuf_bytes * core.sbuf_partitions
    psum = core.psum_bytes * core.psum_partitions
    from_sbuf = (core.sbuf_partitions * lanes + moving) * memory_pj_a_byte(core.sbuf_bytes)
    return [
        PartCost.of("sbuf", memory_mm2(sbuf), from_sbuf * 1e-3),
        PartCost.of("psum", 2 * memory_mm2(psum), sums * memory_pj_a_byte(core.psum_bytes) * 1e-3),
    ]


def _dma(core: Core) -> PartCost:
    area = core.dma_engines * (DMA_LOGIC_MM2 + memory_mm2(DMA_BUFFER_BYTES))
    rate = core.dma_engines * core.dma_bytes_per_ns
    energy = memory_pj_a_byte(DMA_BUFFER_BYTES) + memory_pj_a_byte(core.sbuf_bytes)
    return PartCost.of("dma", area * max(1.0, core.dma_bytes_per_ns / 17.0), rate * energy * 1e-3)


def _interface(name: str, gbps: float, mm2_a_gbps: float, pj_a_byte: float) -> PartCost:
    return PartCost.of(name, gbps * mm2_a_gbps, gbps * pj_a_byte * 1e-3)
