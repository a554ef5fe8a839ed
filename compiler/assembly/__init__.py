"""From a settled graph to a `Recipe`: steps, control steps, weights."""
