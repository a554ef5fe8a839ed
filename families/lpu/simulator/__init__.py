"""LPU-like chips, simulated: what a schedule computes, and what it costs."""

from tilesmith.families.lpu.simulator.family import LpuSimulator

__all__ = ["LpuSimulator"]
