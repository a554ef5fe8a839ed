"""The jobs behind API and command line: tune, compile, simulate, compare."""
