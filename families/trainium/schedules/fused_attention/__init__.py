"""Stages and schedules of fused attention."""
