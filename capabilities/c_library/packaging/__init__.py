"""Objects, archives, headers, packages: the files."""
