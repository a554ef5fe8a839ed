"""Schedules and layouts for a whole graph, from the records."""
