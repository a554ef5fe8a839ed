"""What instructions compute, and the first one that computes something else."""
