"""LPU-like chips, simulated: what a schedule computes, and what it costs."""

from tilesmith.simulator.lpu.family import LpuSimulator

__all__ = ["LpuSimulator"]
