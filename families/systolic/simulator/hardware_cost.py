"""Area and power of a plain systolic array: processing elements for bfloat16, and its memories.

    array   rows x cols multiply-adds
    sbuf    its bits, in partitions; a row and a column of operands a cycle
    psum    its bits twice (it adds in place); a column of float32 sums a cycle

Constants are those of `simulator.hardware_cost`. Invariant: a fact that makes an array larger or
faster never makes it cheaper (tested).
"""

from __future__ import annotations

from tilesmith.search_space.hardware.target import Target
from tilesmith.simulator.designs.hardware_cost import (
    OPERATION_PJ,
    OPERATION_UM2,
    REGISTERS,
    HardwareCost,
    PartCost,
    memory_mm2,
    memory_pj_a_byte,
    overdrive,
)

NOMINAL_GHZ = 1.0
"""(?)"""


def hardware_cost(target: Target) -> HardwareCost:
    """Area (mm2) and power (W) of one array with its memories."""
    integer, ghz = target.integer, target.number("array.ghz")
    rows, cols = integer("array.rows"), integer("array.cols")
    energy = OPERATION_PJ["bfloat16"] * REGISTERS * overdrive(ghz, NOMINAL_GHZ)
    area = rows * cols * OPERATION_UM2["bfloat16"] * REGISTERS / 1e6
    sbuf, psum = integer("sbuf.mib") * 2**20, integer("psum.mib") * 2**20
    operands = 2 * (rows + cols) * ghz * memory_pj_a_byte(sbuf / integer("sbuf.partitions"))
    sums = 2 * 4 * cols * ghz * memory_pj_a_byte(psum / integer("sbuf.partitions"))
    return HardwareCost(
        (
            PartCost.of("array", area, rows * cols * ghz * energy * 1e-3),
            PartCost.of("sbuf", memory_mm2(sbuf), operands * 1e-3),
            PartCost.of("psum", 2 * memory_mm2(psum), sums * 1e-3),
        ),
        "array",
    )
