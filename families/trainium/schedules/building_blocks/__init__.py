"""Used by schedulers of several operators: the family's machine, layouts, functions the engines
have.
"""
