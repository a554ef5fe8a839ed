"""Pointwise ONNX operators as formulas, and how several become one."""
