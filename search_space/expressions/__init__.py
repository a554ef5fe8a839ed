"""Integer index expressions, scalar expressions, sizes and element types: arithmetic without loops
or buffers.
"""
