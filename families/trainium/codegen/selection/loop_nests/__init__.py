"""A loop nest by itself: its extents, operands, expression patterns."""
