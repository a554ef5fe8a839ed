"""The algorithms of convolution, one a file."""
