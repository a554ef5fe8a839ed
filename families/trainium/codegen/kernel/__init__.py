"""Instruction streams written by hand, and by code generation through the same builder."""
