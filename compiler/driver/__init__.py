"""The compiler from end to end: front ends' contract, order of the passes, verifier, `build`."""
