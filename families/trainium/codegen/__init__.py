"""Instruction streams for Trainium-like cores: instruction set, builder, passes, verifier."""
