"""Recipes of CPUs as plans of libraries, of one size or of many."""
