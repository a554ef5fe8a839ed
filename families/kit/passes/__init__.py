"""Graph passes, and what they ask, that accelerators' backends name and the CPU's does not."""
