"""Native code on this CPU: compile, cache, load, run."""
