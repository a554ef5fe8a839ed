"""What instructions cost, what they wait for, and in which order they are issued."""
