"""The commands of this capability, one a module."""
