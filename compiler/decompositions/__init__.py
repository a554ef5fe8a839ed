"""One file a kind of ONNX operator that is others put together; see
`compiler.rewriting.decomposition`.
"""
