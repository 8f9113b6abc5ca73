"""Triton 3.9's interpreter keeps bf16 as uint16, and multiplies those when it is to take dots."""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

__all__ = ["repair_bf16_dot"]


def repair_bf16_dot() -> None:
    """Make the interpreter take dots of bf16 in fp32, as tensor cores do."""
    broken = InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, *options):
        return broken(self, _widen(a), _widen(b), d, *options)

    InterpreterBuilder.create_dot = create_dot


def _widen(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return TensorHandle(bits.view(np.float32), tl.float32)
