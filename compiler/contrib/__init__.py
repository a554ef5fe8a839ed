"""One file a family of operators that optimisers add to ONNX's; see
`compiler.rewriting.expansion`.
"""
