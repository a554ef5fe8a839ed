"""Changes of a database as a whole: compaction, pruning, verification, merging and its report."""
