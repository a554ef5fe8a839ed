"""What a machine has for this work, what it lacks, and what to do about it: one question a file."""
