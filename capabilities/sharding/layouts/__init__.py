"""How tensors and operators lie over a mesh."""
