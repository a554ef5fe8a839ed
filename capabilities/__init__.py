"""Capabilities beside tuning and compiling: a folder each, which can be deleted (see README.md)."""
