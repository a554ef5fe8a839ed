"""Instruction streams for Trainium-like accelerators: instruction set, builder, passes, verifier."""
