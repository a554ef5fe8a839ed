"""Schedules that only copy, and the boxes they copy."""
