"""The analytical model of CPU schedules (see `family` for its two entries)."""

from tilesmith.simulator.cpu.family import CpuSimulator

__all__ = ["CpuSimulator"]
