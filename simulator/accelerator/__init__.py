"""Simulation of accelerators: functional execution, timeline, roofline, traces, systolic arrays."""

from simulator.accelerator import family, systolic

__all__ = ["family", "systolic"]
