"""Grids of deployments, their prices and fronts."""
