"""What rules are put together from: places between pixels, what attention adds to its scores."""
