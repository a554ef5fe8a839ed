"""Closed forms for many configurations at once, without a stream."""
