"""`tilesmith db`: the tuning database from the command line."""
