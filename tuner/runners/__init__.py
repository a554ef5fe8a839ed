"""Runners, one file each; see `tuner.measurement.runner` for the contract."""
