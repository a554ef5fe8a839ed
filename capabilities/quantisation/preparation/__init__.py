"""A float model brought to the form that is quantised, and the plan of it."""
