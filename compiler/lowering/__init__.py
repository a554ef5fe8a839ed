"""Lowering rules, one file for each family of ONNX operators (see docs/architecture.md)."""
