"""How any CPU schedule uses vectors and matrix registers: element types, packing, register tiles,
reductions of rows.
"""
