"""One trial: the record as a value, which tools made it, rows to values and back, what counts as
one.
"""
