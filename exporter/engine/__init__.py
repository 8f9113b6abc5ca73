"""Builds TensorRT engines from the graphs of a bundle; `engines.py` is the way in."""
