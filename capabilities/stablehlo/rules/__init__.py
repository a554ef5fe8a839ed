"""What StableHLO's operations are in operators of the graph: rules, found by the registry."""
