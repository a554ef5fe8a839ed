"""The commands of this family, one a module."""
