"""Cost models, one file each; see `tuner.surrogates.cost_model` for the contract."""
