"""A tuning job's rows: lease, process, workers, trials shared by jobs that run at the same time."""
