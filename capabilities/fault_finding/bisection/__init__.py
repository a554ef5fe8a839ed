"""Which pass, kernel, schedule or place in memory makes a compiled model wrong."""
