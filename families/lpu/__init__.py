"""LPU-like chips: chains over vectors, placed in space and time, simulated (see README.md)."""
