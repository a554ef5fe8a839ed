"""LPU-like chips: kernels' chains linked to one program, placed in space and time as a whole."""

from tilesmith.families.lpu.backend.backend import LpuBackend

__all__ = ["LpuBackend"]
