"""Compiled models beside references: every tensor, and what first goes wrong."""
