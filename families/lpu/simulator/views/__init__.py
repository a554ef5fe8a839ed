"""A schedule as picture, trace and utilisation."""
