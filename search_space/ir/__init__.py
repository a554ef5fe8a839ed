"""The loop IR: expressions, scalars, programs; their meaning, their text, their rules."""
