"""What families of targets share, and the next one starts from."""
