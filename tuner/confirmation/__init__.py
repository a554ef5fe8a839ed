"""Measuring again before a result is believed: rivals in turns, after drift, in the whole model."""
