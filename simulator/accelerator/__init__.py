"""Simulation of accelerators: functional execution, timeline, roofline, traces, systolic arrays."""
