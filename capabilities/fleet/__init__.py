"""Many machines: a runner whose trials are done by actors of a Ray cluster."""
