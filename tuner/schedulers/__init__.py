"""Task schedulers, one file each; see `tuner.tasks.scheduler` for the contract."""
