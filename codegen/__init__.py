"""(see docs/architecture.md)."""
