"""What hardware costs: area and power by part, and the constants of a process that formulas use.

    area  = units x area of a unit (logic by operations, memory by bits, interfaces by bandwidth)
    power = rate of events x energy of one, at full activity, and leakage by area

A family says of which units a target is made (`FamilySimulator.hardware_cost`); what a unit takes
in a 7 nm process stands here. It is a model for comparing designs with each other: absolute figures
are of the right order, no more, since nobody publishes floor plans. Sources and how far to trust
them (S a secondary source, F derived, ? assumed):

- energies at 7 nm: Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA
  2021, table 2 (S);
- areas of arithmetic at 45 nm: Horowitz, "Computing's Energy Problem", ISSCC 2014, and the table
  of areas that goes with it (S); to 7 nm by the density of transistors, 3.33 and 91.2 million a
  mm2 (S);
- memory: bit cells of 0.027 um2, Chang et al., ISSCC 2017 (S); 70 % of an array is cells (F: 31.8
  Mib/mm2 of cells of 0.021 um2 as TSMC gave them at IEDM 2022).

Invariants: frozen; areas in mm2, powers in W, energies in pJ, all positive; a part that grows never
costs less.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from tilesmith.search_space.support.json_object import JsonObject

DENSITY = 3.33 / 91.2
"""Area of logic at 7 nm, as a share of its area at 45 nm (S)."""

OPERATION_UM2 = {
    "int8": (282 + 137) * DENSITY,
    "bfloat16": (1640 * (8 / 11) ** 2 + 4184) * DENSITY,
    "float16": (1640 + 4184) * DENSITY,
    "float32": (7700 + 4184) * DENSITY,
}
"""A multiply-add: the product, and a sum in 32 bits. A bfloat16 product is one of float16 with 8
bits of significand, not 11, and its area goes with their square (F)."""

OPERATION_PJ = {
    "int8": 0.07 + 0.03,
    "bfloat16": 0.21 + 0.38,
    "float16": 0.34 + 0.38,
    "float32": 1.31 + 0.38,
}
"""A multiply-add, likewise."""

REGISTERS = 1.5
"""Times the arithmetic that a processing element takes, with its registers and control (?)."""

REGISTER_UM2_A_BIT = 0.3
REGISTER_PJ_A_BIT = 0.002
"""A flip-flop: some 11 transistors' worth of gates, and its clock (?)."""

WIRE_PJ_A_BIT_MM = 0.2 * 0.75**2 / 4
"""C V^2 a change: 0.2 pF a mm (Ho, Mai and Horowitz, "The Future of Wires", Proc. IEEE 2001; S) at
0.75 V (?); of random bits half change, and every other change draws charge (F)."""

CELL_UM2 = 0.027
ARRAY_EFFICIENCY = 0.7

SRAM_PJ_AN_ACCESS = ((8, 7.5), (32, 8.5), (1024, 14.0))
"""KiB of a memory, and pJ of an access of 8 bytes."""

HBM_PJ_A_BYTE = 350 / 8
"""Of 250 to 450 pJ for 8 bytes of HBM2, the middle."""

LINK_PJ_A_BYTE = 8 * 5.0
"""Serial links between chips, 5 pJ a bit (?)."""

HBM_MM2_A_GBPS = 0.03
"""Interface and controller: some 14 mm2 for a stack of 460 GB/s (?)."""

LINK_MM2_A_GBPS = 0.03
"""(?)"""

LEAKAGE_W_A_MM2 = 0.03
"""Of a 7 nm chip at work (?)."""


@dataclass(frozen=True)
class PartCost:
    """One part: its area in mm2, and its power in W at full activity, leakage included."""

    name: str
    area_mm2: float
    power_w: float

    @classmethod
    def of(cls, name: str, area_mm2: float, dynamic_w: float) -> "PartCost":
        return cls(name, area_mm2, dynamic_w + area_mm2 * LEAKAGE_W_A_MM2)


@dataclass(frozen=True)
class HardwareCost(JsonObject, keys="piece area_mm2 power_w parts:_parts"):
    """A piece of hardware, part by part; `piece` says which ("core", "chip")."""

    parts: tuple[PartCost, ...]
    piece: str = "core"

    @property
    def area_mm2(self) -> float:
        return sum(part.area_mm2 for part in self.parts)

    @property
    def power_w(self) -> float:
        return sum(part.power_w for part in self.parts)

    @property
    def _parts(self) -> dict[str, dict[str, float]]:
        return {p.name: {"area_mm2": p.area_mm2, "power_w": p.power_w} for p in self.parts}


def memory_mm2(nbytes: float) -> float:
    """Area of a single-ported memory."""
    return nbytes * 8 * CELL_UM2 / ARRAY_EFFICIENCY / 1e6


def memory_pj_a_byte(nbytes: float) -> float:
    """Energy of moving a byte in or out of one memory of this size: between the sizes of the table
    it goes with the logarithm of the size, beyond it with the root (wires get longer)."""
    kib = max(nbytes / 1024, SRAM_PJ_AN_ACCESS[0][0])
    for (low, least), (high, most) in pairwise(SRAM_PJ_AN_ACCESS):
        if kib <= high:
            return (least + (most - least) * math.log(kib / low) / math.log(high / low)) / 8
    largest, access = SRAM_PJ_AN_ACCESS[-1]
    return access * math.sqrt(kib / largest) / 8


def overdrive(clock: float, nominal: float) -> float:
    """How much more energy an operation takes at a clock other than the nominal one.

    Power goes as C V^2 f, and voltage with frequency (Hennessy and Patterson, section 1.5), so
    energy goes with the square; below the nominal clock the voltage stays.
    """
    return max(1.0, clock / nominal) ** 2
