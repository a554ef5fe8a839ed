"""Schedules for LPU-like machines: rows of lanes in one memory, products by passes."""

from tilesmith.families.lpu.schedules.building_blocks.machine import LPU

__all__ = ["LPU"]
