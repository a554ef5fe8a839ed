"""Graph passes, one a file: each is `Graph -> Graph` and returns the same object if nothing
changes."""
