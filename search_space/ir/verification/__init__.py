"""Whether a program keeps the rules of the IR and of its target, and the proofs this needs."""
