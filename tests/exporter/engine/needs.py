"""What tests of engines cannot do without."""

import importlib.util

import pytest

needs_tensorrt = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed"
)
