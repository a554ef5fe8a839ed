"""The algorithms of the convolution templates, one file each; `geometry` is what they share."""
