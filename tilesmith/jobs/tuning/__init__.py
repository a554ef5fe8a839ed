"""The jobs `tune`, `tune --replay` and `models`: put together, run, told."""
