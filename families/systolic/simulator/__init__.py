"""Simulation of plain systolic arrays."""

from tilesmith.families.systolic.simulator.family import SystolicSimulator

__all__ = ["SystolicSimulator"]
