"""What to compute and the two contracts that answer it: `Workload`, `Parameter`, `Epilogue`;
`Template` (what), `Scheduler` (how).
"""
