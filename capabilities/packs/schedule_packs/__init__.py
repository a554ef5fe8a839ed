"""The packs that ship, each a `.jsonl` file."""
