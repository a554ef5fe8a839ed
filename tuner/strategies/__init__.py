"""Search strategies, one file each; see `tuner.strategy` for the contract."""
