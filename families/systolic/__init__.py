"""Plain systolic arrays: single products, simulated (see README.md)."""
