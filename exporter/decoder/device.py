"""What a graph is built to run on; the numbers are the same, the way to them is not."""

from typing import Literal

__all__ = ["Device"]

Device = Literal["cpu", "engine"]
"""`engine`: TensorRT, which updates only static caches in place and has plugins for what standard
operators do slowly. `cpu`: ONNX Runtime, for which caches grow, since reading a part of one takes a
copy that costs more than attention, and where few rows gather the weights they need."""
