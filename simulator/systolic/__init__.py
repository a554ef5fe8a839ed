"""Simulation of plain systolic arrays."""

from tilesmith.simulator.systolic.family import SystolicSimulator

__all__ = ["SystolicSimulator"]
