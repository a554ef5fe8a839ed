"""Shapes, types and validity of one ONNX node."""
