"""Post-training quantisation: a float32 model and data become an ONNX model with Q/DQ pairs."""
