"""The order in which schedules add the terms of sums, and the spaces that keep one order."""
