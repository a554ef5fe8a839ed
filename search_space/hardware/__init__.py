"""A chip as data: the target, its instruction set, its matrix registers, its on-chip memories."""
