"""Ranges, scales, integers: the numbers of a quantised model."""
