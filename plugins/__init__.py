"""Operators of ours: for each its definition in NumPy and its ONNX function body."""
