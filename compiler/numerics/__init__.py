"""Which numbers tensors hold (quantised, whole, in lower precision) and what rewrites may do with
them.
"""
