"""Kernels written by hand, a file for each family; `hand_written.py` prints what each costs.

Every function builds one finished instruction stream: the first argument is the core, the others
are sizes (rows stand for tokens or samples, a multiple of 128 unless said otherwise). They are
plain, readable schedules: double-buffered loads, one pass over the data where it fits.
"""
