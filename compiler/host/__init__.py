"""What runs on the host: operators without a kernel, constant folding, the reference."""
