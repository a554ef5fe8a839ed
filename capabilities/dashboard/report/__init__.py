"""The report of one tuning job: gathered from the database, one page."""
