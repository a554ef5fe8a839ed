"""Models tuned while they are used (see README.md)."""
