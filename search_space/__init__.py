"""What to compute, the loop IR that says how, and every way from one to the other."""
