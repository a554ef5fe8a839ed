"""A model on one chip: chains of all kernels joined, placed, run, costed."""
