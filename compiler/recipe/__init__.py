"""`Recipe`: a compiled model as plain data, and where each of its tensors lies: layouts,
placement, the memory plan.
"""
