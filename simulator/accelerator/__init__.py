"""Simulation of accelerators: functional execution, timeline, roofline, traces, systolic arrays."""

from simulator.accelerator import systolic

__all__ = ["systolic"]
