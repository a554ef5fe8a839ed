"""Registry: numpy code for a group of ONNX operators a file."""
