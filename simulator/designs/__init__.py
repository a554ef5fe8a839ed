"""What hardware costs in area and power, and which designs are on a Pareto front."""
