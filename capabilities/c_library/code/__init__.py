"""The library's own functions, from a `Plan`."""
