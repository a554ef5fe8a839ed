"""Where a compiled model is wrong: tensor by tensor, and bisected to the part at fault."""
