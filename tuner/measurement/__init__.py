"""One trial: compile, check, time, on behalf of a `Runner`, the contract of all ways to measure."""
