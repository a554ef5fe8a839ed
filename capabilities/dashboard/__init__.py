"""The live page: what runs and what ran, served from a tuning database that it only reads."""
