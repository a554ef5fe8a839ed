"""What chains and bursts compute, and the first that computes something else."""
