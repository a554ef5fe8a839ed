"""Runners, one file each; see `tuner.runner` for the contract."""
