"""ONNX files in: reading, checking, shapes, the graph."""
