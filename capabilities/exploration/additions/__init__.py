"""What exploration adds to commands that are not its own, one command a module."""
