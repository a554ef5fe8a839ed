"""A model's tensors by something else than our kernels."""
