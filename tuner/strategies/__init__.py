"""Search strategies, one file each; see `tuner.tasks.strategy` for the contract."""
