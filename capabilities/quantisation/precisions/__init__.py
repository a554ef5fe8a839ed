"""Which precision each layer gets: the least cost within a budget of error."""
