"""Schedules for CPUs: vectors, registers, caches."""

from tilesmith.search_space.schedules.cpu.machine import CPU

__all__ = ["CPU"]
