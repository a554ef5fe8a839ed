"""A compiled model run step by step, and the report of what was seen."""
