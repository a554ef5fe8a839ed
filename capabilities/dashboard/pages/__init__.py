"""One kind of page a file."""
