"""The graph: nodes, tensors and their values, the names they came from, and what a single node
means at any opset.
"""
