"""What judging a schedule gave: the measurement, how the schedule was found, by which versions,
who judges schedules and whole models.
"""
