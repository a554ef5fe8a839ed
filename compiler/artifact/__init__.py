"""The `.tsm` file: its members, its manifest, its signature."""
