"""Cost models, one file each; see `tuner.cost_model` for the contract."""
