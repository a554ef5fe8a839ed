"""Schedules for CPUs: vectors, registers, caches."""
