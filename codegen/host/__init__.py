"""The computer the code runs on: its CPU as a target, aligned memory, compiled objects on disk."""
