"""Which schedule to try next: strategies, cost models, schedulers, runners and the tuning loop.

Light on import: `tuner.session`, which needs the database and the simulator, is imported by
whoever tunes.
"""
