"""CPUs: native kernels, whole models timed on this machine."""

from tilesmith.compiler.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
