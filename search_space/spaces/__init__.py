"""Search spaces: knobs, configurations, and what configurations have in common."""
