"""Sequences of kernels run by native threads, and their clocks."""
