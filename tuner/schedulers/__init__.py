"""Task schedulers, one file each; see `tuner.scheduler` for the contract."""
