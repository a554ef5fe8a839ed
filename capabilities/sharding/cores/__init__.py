"""A sharded program executed, and compiled for each core."""
