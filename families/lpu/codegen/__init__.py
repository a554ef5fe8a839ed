"""LPU-like chips: chains, their schedule in space and time, and its laws."""
