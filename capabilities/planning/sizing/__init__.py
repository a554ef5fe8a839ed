"""The fewest chips for a demand."""
