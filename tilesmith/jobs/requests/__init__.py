"""A request resolved once: graph, sizes, precision, and its words."""
