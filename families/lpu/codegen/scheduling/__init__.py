"""Chains placed in space and time."""
