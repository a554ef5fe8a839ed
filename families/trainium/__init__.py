"""Trainium-like cores: engines over 128 partitions, simulated (see README.md)."""
