"""NKI's own notation: its modules, functions, tensors and indices, as what a trace records."""
