"""Area and power of a chip of family "lpu", out of what its target says there is.

    mxm      planes x columns x k_int8 multiply-adds for bytes, and for two planes together columns
             x k_float16 of float16 into float32; each weight twice in registers (the load buffer
             and the array). It does one or the other: the greater power counts
    vxm      alus x lanes of float32
    mem      bits of all slices, with a code that corrects errors (9 bits to 128); every slice reads
             and writes a word a cycle, in memories of a tile and bank
    streams  a register for each stream, lane and hop of 4 slices; wires across the chip, which is
             taken for a square
    sxm      selections of one of 16 bytes in every lane, for each value a cycle
    icu      queues of instructions
    links    interfaces by bandwidth, both ways: c2c, and the host's

Constants are those of `simulator.hardware_cost`, of a 7 nm process, so that families compare; a TSP
of 14 nm is some 2.5 times as large (docs/codesign.md has both beside each other). What the paper
says of the machine is T20 (Abts et al., "Think Fast", ISCA 2020). Delays, hops and clocks take no
area. Invariant: a fact that makes a chip larger or faster never makes it cheaper (tested).
"""

import math

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.families.lpu.schedules.building_blocks.machine import has_slices
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator.designs import hardware_cost as cost

NOMINAL_GHZ = 0.9
"""That the process reaches at its nominal voltage: the product's, of an older process (?)."""

CHECKED = 137 / 128
"""Bits kept for each bit (T20: SECDED over 16 bytes)."""

SLICES_A_HOP = 4
"""Slices that a stream passes between two registers (T20); longer hops are not cheaper here."""

SELECTED_BYTES = 16
SELECTION_UM2_A_BIT = 0.06
SELECTION_PJ_A_BYTE = 0.05
QUEUE_MM2 = 0.02
"""A gate of two inputs for each bit to select from, what selecting takes, and a queue with its
buffers and decoder (?)."""


def hardware_cost(target: Target) -> cost.HardwareCost:
    """Area (mm2) and power (W) of one chip.

    Raises:
        TargetError: of the target no more than a roofline is known.
    """
    if not has_slices(target):
        raise TargetError(
            f"of target '{target.name}' only a roofline is public, and area and power are modelled "
            "of slices and planes; 'lpu1' has them"
        )
    chip = Chip.of(target)
    faster = cost.overdrive(chip.ghz, NOMINAL_GHZ)
    inside = [_mxm(chip, target, faster), _vxm(chip, faster), _mem(chip), _sxm(chip, faster)]
    queues = len(chip.queues)
    icu = cost.PartCost.of("icu", queues * QUEUE_MM2, 0.0)
    across = math.sqrt(sum(part.area_mm2 for part in (*inside, icu)))
    links = 2 * (chip.links * target.number("c2c.gbps") + target.number("host.gbps"))
    return cost.HardwareCost(
        (
            *inside,
            _streams(chip, across, faster),
            icu,
            cost.PartCost.of(
                "links", links * cost.LINK_MM2_A_GBPS, links * cost.LINK_PJ_A_BYTE * 1e-3
            ),
        ),
        "chip",
    )


def _mxm(chip: Chip, target: Target, faster: float) -> cost.PartCost:
    planes, columns = target.integer("mxm.planes"), target.integer("mxm.columns")
    byte = planes * columns * target.integer("mxm.k_int8")
    half = planes // 2 * columns * chip.k_float16
    registers = 2 * 8 * byte * cost.REGISTER_UM2_A_BIT
    logic = byte * cost.OPERATION_UM2["int8"] + half * cost.OPERATION_UM2["float16"]
    energy = max(byte * cost.OPERATION_PJ["int8"], half * cost.OPERATION_PJ["float16"])
    area = (logic * cost.REGISTERS + registers) / 1e6
    return cost.PartCost.of("mxm", area, energy * cost.REGISTERS * faster * chip.ghz * 1e-3)


def _vxm(chip: Chip, faster: float) -> cost.PartCost:
    units = chip.alus * LANES
    area = units * cost.OPERATION_UM2["float32"] * cost.REGISTERS / 1e6
    energy = cost.OPERATION_PJ["float32"] * cost.REGISTERS * faster
    return cost.PartCost.of("vxm", area, units * chip.ghz * energy * 1e-3)


def _mem(chip: Chip) -> cost.PartCost:
    bank = chip.bank_words * LANES / chip.tiles
    rate = chip.bytes_per_second * 1e-9 * CHECKED
    area = cost.memory_mm2(chip.sram_bytes * CHECKED)
    return cost.PartCost.of("mem", area, rate * cost.memory_pj_a_byte(bank) * 1e-3)


def _streams(chip: Chip, across: float, faster: float) -> cost.PartCost:
    """
    Args:
        across: mm that streams go.
    """
    bits = 2 * chip.streams * LANES * 8
    hops = chip.slices / SLICES_A_HOP
    energy = bits * (hops * cost.REGISTER_PJ_A_BIT + across * cost.WIRE_PJ_A_BIT_MM)
    area = bits * hops * cost.REGISTER_UM2_A_BIT / 1e6
    return cost.PartCost.of("streams", area, energy * faster * chip.ghz * 1e-3)


def _sxm(chip: Chip, faster: float) -> cost.PartCost:
    lanes = 2 * sum(chip.sxm) * LANES
    area = lanes * SELECTED_BYTES * 8 * (SELECTION_UM2_A_BIT + cost.REGISTER_UM2_A_BIT) / 1e6
    return cost.PartCost.of("sxm", area, lanes * SELECTION_PJ_A_BYTE * faster * chip.ghz * 1e-3)
