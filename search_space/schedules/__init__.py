"""How operators are run: one folder for each family of targets."""
