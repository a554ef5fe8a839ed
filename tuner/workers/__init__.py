"""Worker processes: the loop inside, the parent's end, and the messages between them."""
