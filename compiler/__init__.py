"""The graph compiler: ONNX model -> graph -> tuned executable (see docs/architecture.md)."""
