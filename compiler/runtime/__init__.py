"""A compiled model while it runs: executable, memory of a run, inputs and outputs, step times."""
