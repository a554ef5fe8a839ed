"""How long every operator takes inside the running model, and why (see README.md)."""
