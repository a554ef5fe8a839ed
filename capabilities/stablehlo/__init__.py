"""StableHLO modules in: reading them, and saying what they compute in operators of the graph."""
