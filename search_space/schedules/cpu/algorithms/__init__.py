"""One of several algorithms that a CPU scheduler offers for an operator: its part of the space and
its schedule.
"""
