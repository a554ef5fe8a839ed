"""Graphs of vectors, and chains made of them."""
