"""LPU-like chips, simulated: what a schedule computes, and what it costs."""
