"""Schedules for plain systolic arrays."""

from tilesmith.families.systolic.schedules.machine import SYSTOLIC

__all__ = ["SYSTOLIC"]
