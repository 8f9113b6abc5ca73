"""Operators of ours: the definition of each, its ONNX function body and its TensorRT plugin."""
