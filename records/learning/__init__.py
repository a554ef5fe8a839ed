"""Trials that cost models are trained on, and the trained models kept in the database."""
