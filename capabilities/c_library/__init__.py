"""Compiled models as libraries for other programs: one object, a header, archives, linking."""
