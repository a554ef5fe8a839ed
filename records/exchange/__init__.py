"""Trials as JSON Lines, in and out of a database."""
