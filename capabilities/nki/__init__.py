"""Kernels written in NKI on the command line; the family whose machine they are for reads them."""
