"""Weights laid out anew by numpy: boxes of elements, and what a prologue is in them."""
