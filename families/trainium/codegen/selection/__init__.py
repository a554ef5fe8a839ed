"""From the loop IR to instructions."""
