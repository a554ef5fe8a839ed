"""Queries that only read: bests, filters, counts, gains, schedules of near workloads and other
machines.
"""
