"""LPU-like chips: kernels' chains linked to one program, placed in space and time as a whole."""

from tilesmith.compiler.backends.lpu.backend import LpuBackend

__all__ = ["LpuBackend"]
