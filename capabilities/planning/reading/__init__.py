"""From a file (config.json, ONNX) to an architecture."""
