"""A whole job: from tasks to the best schedules on record, and what it reports."""
