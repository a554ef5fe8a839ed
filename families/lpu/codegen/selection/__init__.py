"""From verified loop IR to chains of vectors."""
