"""Graph passes for Trainium alone, one a file."""
