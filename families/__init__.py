"""Families of targets: a folder each, which can be deleted (see families/README.md)."""
