"""Simulation of Trainium-like cores: functional execution, timeline, estimates, traces."""

from tilesmith.simulator.trainium.family import TrainiumSimulator

__all__ = ["TrainiumSimulator"]
