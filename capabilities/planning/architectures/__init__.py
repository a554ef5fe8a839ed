"""Families of architectures, one a file: public configurations become layers of operators."""
