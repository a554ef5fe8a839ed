"""Kernels in NKI's public Python, read as they are: values, laws, time (see README.md)."""
