"""Whether a lower precision's error is as large as it must be."""
