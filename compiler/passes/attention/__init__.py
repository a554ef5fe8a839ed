"""The pass that fuses attention, and how it reads masks and grouped queries."""
