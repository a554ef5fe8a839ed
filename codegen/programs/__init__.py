"""From workload and configuration to a lowered program, once for each structure."""
