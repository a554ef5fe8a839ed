"""Co-design: which hardware would serve models best, for its area or power."""
