"""When each instruction runs, and pictures of it."""
