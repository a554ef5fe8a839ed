"""Schedules for plain systolic arrays."""
