"""Schedules for LPU-like machines: rows of lanes in one memory, products by passes."""

from tilesmith.search_space.schedules.lpu.machine import LPU

__all__ = ["LPU"]
