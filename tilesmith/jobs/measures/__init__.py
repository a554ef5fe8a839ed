"""How long calls take and how far outputs are off, for any runtime."""
