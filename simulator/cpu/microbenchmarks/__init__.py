"""Numbers of a CPU that are measured on this one: clock, peaks, bandwidths."""
