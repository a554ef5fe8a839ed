"""Instructions of LPU-like chips: bursts, text, bytes."""
