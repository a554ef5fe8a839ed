"""Algorithms for rows (maps, reductions, normalisations), by the rows' length."""
