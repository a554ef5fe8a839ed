"""What judging a schedule gave: the judgement or measurement, the gain, how the schedule was found,
by which versions, who judges schedules and whole models.
"""
