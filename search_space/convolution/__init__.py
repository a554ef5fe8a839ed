"""What the convolution templates share: geometry, stages, the reference in numpy."""
