"""Trainium-like cores: kernels linked to one program, which is simulated."""

from tilesmith.families.trainium.backend.backend import TrainiumBackend

__all__ = ["TrainiumBackend"]
