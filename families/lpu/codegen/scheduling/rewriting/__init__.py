"""Chains to equal chains, before any is placed."""
