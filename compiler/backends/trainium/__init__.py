"""Trainium-like cores: kernels linked to one program, which is simulated."""

from tilesmith.compiler.backends.trainium.backend import TrainiumBackend

__all__ = ["TrainiumBackend"]
