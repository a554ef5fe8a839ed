"""From specs to one program for every core, and its cost."""
