"""Simulation of Trainium-like cores: functional execution, timeline, estimates, traces."""

from tilesmith.families.trainium.simulator.family import TrainiumSimulator

__all__ = ["TrainiumSimulator"]
