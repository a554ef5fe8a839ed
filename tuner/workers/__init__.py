"""Worker processes: the loop inside, and the parent's end."""
