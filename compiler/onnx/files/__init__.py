"""The ONNX file itself: reading, bringing it to one form, arrays inside and beside it."""
