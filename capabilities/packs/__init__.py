"""Packs: files of best schedules, which compile models where nothing was tuned (see README.md)."""
