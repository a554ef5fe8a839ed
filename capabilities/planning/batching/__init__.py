"""Continuous batching by discrete events."""
