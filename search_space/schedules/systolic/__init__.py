"""Schedules for plain systolic arrays."""

from tilesmith.search_space.schedules.systolic.machine import SYSTOLIC

__all__ = ["SYSTOLIC"]
