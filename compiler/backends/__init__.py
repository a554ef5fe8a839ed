"""Backends, one file for each family of targets."""
