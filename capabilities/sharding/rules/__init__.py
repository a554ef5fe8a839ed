"""How operators may be cut, by what they mean: a file for each kind of operator."""
