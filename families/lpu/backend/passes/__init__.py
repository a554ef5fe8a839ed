"""Graph passes for LPU alone, one a file."""
