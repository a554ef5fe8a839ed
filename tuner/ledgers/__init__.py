"""Where known trials come from and new ones go: the database, a file when it fails, jobs that run
beside, recorded spaces.
"""
