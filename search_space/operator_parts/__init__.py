"""A piece that the templates of several operators share (formula, fused epilogue, indexing,
relayout); no operator itself.
"""
